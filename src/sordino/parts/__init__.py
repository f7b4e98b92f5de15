"""Parts that anyone can bring: tables of recipes, the registry that finds a part, and slots that take one."""
