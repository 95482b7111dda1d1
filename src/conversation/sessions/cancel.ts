import type { Tx } from '../../core/db/write.ts'
import type { Services } from '../../core/process/services.ts'
import { callOff, mailboxState } from '../turns/mailbox.ts'
import type { SessionRow } from './model.ts'
import { lockSession } from './state.ts'
import { findSession } from './store.ts'

/** Aborts the running turn and cancels automatic turns that wait; turns that callers asked for stay (conversation, 10.8). */
export async function cancelSession(tx: Tx, services: Services, id: string): Promise<SessionRow> {
  const session = await lockSession(tx, id)
  const { running, queued } = await mailboxState(tx, session.conversation_id)
  const turns = [...(running ? [running] : []), ...queued.filter(turn => turn.kind === 'auto')]
  if (turns.length === 0) return session
  await callOff(tx, services, turns)
  return (await findSession(tx, id)) ?? session
}
