import type { Context } from '#core/api/operation.ts'
import { voidStatement } from '#core/db/sql.ts'
import { changeSession } from './change.ts'
import type { SessionRow } from './model.ts'

/** Hides a session from its end user and closes it, so that no turn continues unseen. Operators keep it. */
export async function hideSession(
  context: Pick<Context<unknown, unknown, SessionRow>, 'tx' | 'services' | 'resource' | 'allow' | 'allowTags'>,
): Promise<void> {
  const { tx, resource } = context
  if (resource.status === 'open') await changeSession({ ...context, body: { status: 'closed' } })
  await tx.query(voidStatement`update sessions set hidden_at = now() where id = ${resource.id} and hidden_at is null`)
}
