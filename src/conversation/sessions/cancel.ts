import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { endCancelledTurns, mailboxState } from '../turns/mailbox.ts'
import { findSession, sessionKind } from './kind.ts'
import type { SessionRow } from './model.ts'

/** Aborts the running turn and cancels automatic turns that wait; turns that callers asked for stay. */
export async function cancelSession(tx: Tx, services: Services, id: string): Promise<SessionRow> {
  const session = await sessionKind.lock(tx, id)
  const { running, queued } = await mailboxState(tx, session.conversation_id)
  const turns = [...(running ? [running] : []), ...queued.filter(turn => turn.kind === 'auto')]
  if (turns.length === 0) return session
  await endCancelledTurns(tx, services, turns)
  return (await findSession(tx, id)) ?? session
}
