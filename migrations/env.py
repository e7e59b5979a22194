"""Runs migrations on the connection that `dispatcher.store.migrate` hands over; it does nothing else.

There is no alembic.ini and no offline mode, and logging is left as the program has set it up.
"""

from alembic import context

from dispatcher.store.migrate import is_ours
from dispatcher.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    include_name=is_ours,
    compare_server_default=True,
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
