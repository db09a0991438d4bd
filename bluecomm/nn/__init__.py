"""Modules whose forward passes communicate."""
