import { newId } from '../../core/api/ids.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Caller } from '../../core/iam/caller.ts'
import { type CasePrincipal, type CaseRow, type TimelineKind, type TimelineRow, timelineKind } from './model.ts'
import { timelineRows } from './store.ts'

/** Who changed a case. */
export type CaseActor = Pick<TimelineRow, 'principal_kind' | 'principal_id'>

/** What no caller did to the case: an execution of a playbook, or a change of what it names. */
export const AUTOMATION: CaseActor = { principal_kind: 'automation', principal_id: null }

export const actorOf = ({ principal }: Pick<Caller, 'principal'>): CasePrincipal => ({
  kind: principal.type,
  id: principal.id,
})

export const byCaller = ({ principal }: Pick<Caller, 'principal'>): CaseActor => ({
  principal_kind: principal.type,
  principal_id: principal.id,
})

/** One thing that happened to a case. */
export type TimelineEvent = {
  kind: TimelineKind
  data?: Record<string, unknown>
  playbook_execution_id?: string | null
  step_key?: string | null
}

/** Rows of a timeline for what happened. */
export const entriesOf = (
  { id: case_id, project_id }: Pick<CaseRow, 'id' | 'project_id'>,
  by: CaseActor,
  happened: readonly TimelineEvent[],
) =>
  happened.map(({ kind, data = {}, playbook_execution_id = null, step_key = null }) => ({
    id: newId(timelineKind.prefix),
    project_id,
    case_id,
    kind,
    ...by,
    playbook_execution_id,
    step_key,
    data,
    bytes: Buffer.byteLength(JSON.stringify(data)),
  }))

/**
 * Appends to the timeline of a case, whose row the caller holds, with the end of the transaction. Call it once a
 * transaction with all that happened: the order between two calls is open.
 */
export function appendTimeline(
  tx: Pick<Tx, 'alongside'>,
  row: Pick<CaseRow, 'id' | 'project_id'>,
  by: CaseActor,
  happenings: readonly TimelineEvent[],
): void {
  const entries = entriesOf(row, by, happenings)
  if (entries.length > 0) tx.alongside(guard => timelineRows(entries, guard))
}
