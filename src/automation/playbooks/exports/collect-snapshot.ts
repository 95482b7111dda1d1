import { presentLinks, readActionOf } from '#automation/cases/links.ts'
import { type CaseRow, caseKind, evidenceKind, type LinkRow, timelineKind } from '#automation/cases/model.ts'
import { canSeeProject, isAllowed } from '#core/api/access.ts'
import { isIdOf, type Kind, kinds } from '#core/api/kind.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { ExactNumber } from '#core/base/exact-json.ts'
import type { Services } from '#core/base/services.ts'
import { inTransaction } from '#core/db/pool.ts'
import type { Queryable } from '#core/db/sql.ts'
import type { Caller, PrincipalRecord } from '#core/iam/caller.ts'
import { type ApprovalRow, approvalKind, storableApproval } from '#execution/approvals/model.ts'
import { callerForPrincipal } from '#identity/principals/principals.ts'
import { executionBytes } from '../executions/store.ts'
import { presentExecutions } from './executions.ts'
import type { ExportRow, Omission } from './model.ts'
import { type CaseSnapshot, type ExportedExecution, LINKED, type PresentedRecord } from './snapshot.ts'
import {
  listEvidence,
  listExecutionCases,
  listLinks,
  listRowsOfKind,
  listTimeline,
  snapshotBytes,
  useRepeatableRead,
} from './store.ts'

/** Limit of a snapshot in worker memory. */
const MAX_BYTES = 64 * 1024 * 1024
/** Links per export, including omitted ones. */
const MAX_LINKS = 10_000
/** Linked records per statement. */
const BATCH = 50

/** Remaining bytes of a snapshot. */
class SnapshotBudget {
  #remaining = MAX_BYTES

  /** @throws REQUEST_REJECTED if the budget is used up */
  spend(bytes: number): void {
    this.#remaining -= bytes
    if (this.#remaining < 0)
      throw new AppError('REQUEST_REJECTED', {
        status: 413,
        message: `The export is larger than ${MAX_BYTES} bytes`,
        meta: { max_bytes: MAX_BYTES },
      })
  }
}

const EXPORT_ACTIONS = ['cases:GetCase', 'cases:ExportCase'] as const

/** Action that reads executions, checked on their case. */
const READ_EXECUTION = 'playbooks:GetExecution'

/** Whether a caller may export a case, or with `execution` an execution of it. */
export const mayExport = (caller: Caller, about: CaseRow, execution: boolean): boolean =>
  canSeeProject(caller, about.project_id) &&
  [...EXPORT_ACTIONS, ...(execution ? [READ_EXECUTION] : [])].every(action =>
    isAllowed(caller, action, { kind: caseKind, row: about }),
  )

/** Removes `tool_context` at every level of a record. */
function withoutContext<T>(value: T): T {
  if (Array.isArray(value)) return value.map(withoutContext) as T
  if (typeof value !== 'object' || value === null || value instanceof ExactNumber) return value
  return Object.fromEntries(
    Object.entries(value)
      .filter(([name]) => name !== 'tool_context')
      .map(([name, each]) => [name, withoutContext(each)]),
  ) as T
}

/**
 * Presents a linked record as its GET operation does. An approval without stored content is presented without content.
 */
const presentRecord = (kind: Kind<any>, row: any): PresentedRecord =>
  withoutContext(
    kind.present(kind.name === approvalKind.name ? storableApproval(row as ApprovalRow) : row),
  ) as PresentedRecord

type LinkedRecords = { [List in (typeof LINKED)[keyof typeof LINKED]]: PresentedRecord[] }

/**
 * Returns the linked records that the caller may read, in link order, and omissions for forbidden and deleted records.
 */
async function readLinked(
  db: Queryable,
  caller: Caller,
  projectId: string,
  links: readonly LinkRow[],
  budget: SnapshotBudget,
): Promise<{ linked: LinkedRecords; omitted: Omission[] }> {
  const linked = Object.fromEntries(Object.values(LINKED).map(list => [list, []])) as unknown as LinkedRecords
  const omitted: Omission[] = []
  for (const [type, ofType] of Map.groupBy(links, link => link.type)) {
    const kind = kinds.find(type)
    const action = kind ? readActionOf(kind) : null
    for (let at = 0; at < ofType.length; at += BATCH) {
      const batch = ofType.slice(at, at + BATCH)
      const ids = batch.map(link => link.target_id).filter(id => kind && isIdOf(kind, id))
      const rows = new Map((kind ? await listRowsOfKind(db, kind, projectId, ids) : []).map(row => [row.id, row]))
      for (const { target_id: id } of batch) {
        const row = rows.get(id)
        if (!kind || !row) omitted.push({ type, id, reason: 'not_found' })
        else if (action && isAllowed(caller, action, { kind, row })) {
          const record = presentRecord(kind, row)
          budget.spend(Buffer.byteLength(JSON.stringify(record)))
          linked[LINKED[type]].push(record)
        } else omitted.push({ type, id, reason: 'forbidden' })
      }
    }
  }
  return { linked, omitted }
}

/** Returns the executions of the subject, or omissions if the caller may not read them. */
async function readExecutions(
  db: Queryable,
  caller: Caller,
  about: CaseRow,
  execution_id: string | null,
  budget: SnapshotBudget,
): Promise<{ executions: ExportedExecution[]; omitted: Omission[] }> {
  budget.spend(await executionBytes(db, about.id, execution_id))
  const executions = await presentExecutions(db, { case_id: about.id, execution_id })
  return isAllowed(caller, READ_EXECUTION, { kind: caseKind, row: about })
    ? { executions: executions.map(withoutContext), omitted: [] }
    : {
        executions: [],
        omitted: executions.map(({ id }) => ({ type: 'playbook_execution', id, reason: 'forbidden' })),
      }
}

/**
 * Returns the ids of the cases that contain the timeline, evidence and links of the subject. A merge may have moved
 * them to another case, which the caller must also be allowed to export.
 * @throws FORBIDDEN
 */
async function requireExportableCases(
  db: Queryable,
  caller: Caller,
  about: CaseRow,
  executionId: string | null,
): Promise<readonly string[]> {
  if (executionId === null) return [about.id]
  const cases = await listExecutionCases(db, executionId)
  if (!cases.every(each => mayExport(caller, each, true)))
    raise('FORBIDDEN', {
      message: 'The requester has no permission to export the case that this case was merged into',
    })
  return cases.map(({ id }) => id)
}

/**
 * Reads the contents of an export in one database snapshot, with the requester's current permissions.
 * @throws FORBIDDEN if the requester may no longer export the subject, RESOURCE_NOT_FOUND if it was deleted,
 *   REQUEST_REJECTED if it is too large
 */
export async function collectSnapshot(
  services: Services,
  row: ExportRow,
  principal: PrincipalRecord,
): Promise<CaseSnapshot> {
  const caller = await callerForPrincipal(services, principal, row.project_id)
  const execution_id = row.subject_type === 'playbook_execution' ? row.subject_id : null
  return inTransaction(services.pool, async db => {
    await useRepeatableRead(db)
    const about = await caseKind.find(db, row.case_id)
    if (!about) return raise('RESOURCE_NOT_FOUND', { meta: { id: row.case_id } })
    if (!caller || !mayExport(caller, about, execution_id !== null))
      return raise('FORBIDDEN', { message: 'The requester no longer has permission to export this case' })
    const caseIds = await requireExportableCases(db, caller, about, execution_id)
    const budget = new SnapshotBudget()
    budget.spend(await snapshotBytes(db, caseIds, execution_id))
    const { executions, omitted: omittedExecutions } = await readExecutions(db, caller, about, execution_id, budget)
    if (execution_id !== null && executions.length === 0)
      return raise('RESOURCE_NOT_FOUND', { meta: { id: execution_id } })
    const timeline = await listTimeline(db, caseIds, execution_id)
    const evidence = await listEvidence(db, caseIds, execution_id)
    const linkIds = new Set(timeline.map(({ data }) => data.link_id))
    const links = (await listLinks(db, caseIds)).filter(({ id }) => execution_id === null || linkIds.has(id))
    if (links.length > MAX_LINKS)
      throw new AppError('REQUEST_REJECTED', {
        status: 413,
        message: `The case has more than ${MAX_LINKS} links`,
        meta: { max_links: MAX_LINKS },
      })
    const { linked, omitted } = await readLinked(db, caller, about.project_id, links, budget)
    return {
      export_version: 1,
      generated_at: services.clock.now().toISOString(),
      subject_type: row.subject_type,
      case: caseKind.present(about) as PresentedRecord,
      executions,
      timeline: timeline.map(each => timelineKind.present(each) as PresentedRecord),
      evidence: evidence.map(each => evidenceKind.present(each) as PresentedRecord),
      links: (await presentLinks(db, links)) as PresentedRecord[],
      ...linked,
      omitted: [...omittedExecutions, ...omitted],
    }
  })
}
