import type { Outgoing } from '../../core/db/write.ts'
import { TURN_CHANNEL } from './live.ts'
import { type GenerationRow, generationKind } from './model.ts'
import { traceWrite } from './trace-write.ts'

/** What follows from the end of a turn: its event, the write of its trace, and the notice for those who wait. */
export function followEnd(outgoing: Outgoing, after: GenerationRow): void {
  if (after.step_count > 0) outgoing.send(traceWrite, { trace_id: after.trace_id, project_id: after.project_id })
  outgoing.emit(generationKind, after.status === 'completed' ? 'completed' : 'failed', after)
  outgoing.notify(TURN_CHANNEL, `${after.id} settled`)
}
