"""Runs migrations on the connection that `dispatcher.store.migrate` hands over; it does nothing else.

All steps are one transaction. There is no alembic.ini and no offline mode, and logging stays as the program has set it.
"""

from alembic import context

from dispatcher.store.migrate import is_ours, note_oldest_code
from dispatcher.store.tables import metadata

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    include_name=is_ours,
    compare_server_default=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
    note_oldest_code(connection, context.get_context().get_current_revision())
