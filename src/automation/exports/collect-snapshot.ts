import { AppError, raise } from '../../core/api/errors.ts'
import { isIdOf, type Kind, kinds } from '../../core/api/kind.ts'
import { inTransaction } from '../../core/db/pool.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { canSeeProject, isAllowed } from '../../core/iam/access.ts'
import type { Caller, PrincipalRecord } from '../../core/iam/caller.ts'
import type { Services } from '../../core/process/services.ts'
import { type ApprovalRow, approvalKind, storableApproval } from '../../execution/approvals/model.ts'
import { callerForPrincipal } from '../../identity/principals.ts'
import { presentLinks, readActionOf } from '../cases/links.ts'
import { type CaseRow, caseKind, evidenceKind, type LinkRow, timelineKind } from '../cases/model.ts'
import { exportedExecutions } from './executions.ts'
import type { ExportRow, Omission } from './model.ts'
import { type CaseSnapshot, type ExportedExecution, LINKED, type PresentedRecord } from './snapshot.ts'
import {
  casesOfExecution,
  evidenceOf,
  linksOf,
  snapshotBytes,
  snapshotRows,
  timelineOf,
  useRepeatableRead,
} from './store.ts'

/** More than this is not held in the memory of a worker. */
const MAX_BYTES = 64 * 1024 * 1024
/** Links that are read, each of which may be omitted. */
const MAX_LINKS = 10_000
/** Linked records that are read at once. */
const BATCH = 50

/** What an export may still hold. */
class Room {
  #left = MAX_BYTES

  take(bytes: number): void {
    this.#left -= bytes
    if (this.#left < 0)
      throw new AppError('REQUEST_REJECTED', {
        status: 413,
        message: `What is exported is larger than ${MAX_BYTES} bytes`,
        meta: { max_bytes: MAX_BYTES },
      })
  }
}

/** What a subject takes to be exported: to read it, and to export it. */
const REQUIRED = ['cases:GetCase', 'cases:ExportCase'] as const

/** What shows executions, asked of their case. */
const READ_EXECUTION = 'playbooks:GetExecution'

/** Whether a caller may export a case, or with `execution` one of its executions. */
export const mayExport = (caller: Caller, about: CaseRow, execution: boolean): boolean =>
  canSeeProject(caller, about.project_id) &&
  [...REQUIRED, ...(execution ? [READ_EXECUTION] : [])].every(action =>
    isAllowed(caller, action, { kind: caseKind, row: about }),
  )

/** A record without what a turn or call was given in confidence, however deep it lies. */
function withoutContext<T>(value: T): T {
  if (Array.isArray(value)) return value.map(withoutContext) as T
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(
    Object.entries(value)
      .filter(([name]) => name !== 'tool_context')
      .map(([name, each]) => [name, withoutContext(each)]),
  ) as T
}

/** A linked record as its GET shows it; of an approval that keeps no content, without any. */
const presented = (kind: Kind<any>, row: any): PresentedRecord =>
  withoutContext(
    kind.present(kind.name === approvalKind.name ? storableApproval(row as ApprovalRow) : row),
  ) as PresentedRecord

type Linked = { [List in (typeof LINKED)[keyof typeof LINKED]]: PresentedRecord[] }

/** Linked records that the caller may read, in the order of their links; what it may not, and what is gone, is omitted. */
async function readLinked(
  db: Queryable,
  caller: Caller,
  projectId: string,
  links: readonly LinkRow[],
  room: Room,
): Promise<{ linked: Linked; omitted: Omission[] }> {
  const linked = Object.fromEntries(Object.values(LINKED).map(list => [list, []])) as unknown as Linked
  const omitted: Omission[] = []
  for (const [type, named] of Map.groupBy(links, link => link.type)) {
    const kind = kinds.find(type)
    const action = kind ? readActionOf(kind) : null
    for (let at = 0; at < named.length; at += BATCH) {
      const batch = named.slice(at, at + BATCH)
      const ids = batch.map(link => link.target_id).filter(id => kind && isIdOf(kind, id))
      const rows = new Map((kind ? await snapshotRows(db, kind, projectId, ids) : []).map(row => [row.id, row]))
      for (const { target_id: id } of batch) {
        const row = rows.get(id)
        if (!kind || !row) omitted.push({ type, id, reason: 'not_found' })
        else if (action && isAllowed(caller, action, { kind, row })) {
          const shown = presented(kind, row)
          room.take(Buffer.byteLength(JSON.stringify(shown)))
          linked[LINKED[type]].push(shown)
        } else omitted.push({ type, id, reason: 'forbidden' })
      }
    }
  }
  return { linked, omitted }
}

/** Executions of the subject, unless the caller may not read them. */
async function readExecutions(
  db: Queryable,
  caller: Caller,
  about: CaseRow,
  execution_id: string | null,
  room: Room,
): Promise<{ executions: ExportedExecution[]; omitted: Omission[] }> {
  const of = { case_id: about.id, execution_id }
  room.take((await exportedExecutions.only()?.bytes(db, of)) ?? 0)
  const found = (await exportedExecutions.only()?.read(db, of)) ?? []
  return isAllowed(caller, READ_EXECUTION, { kind: caseKind, row: about })
    ? { executions: found.map(withoutContext), omitted: [] }
    : {
        executions: [],
        omitted: found.map(({ id }) => ({ type: 'playbook_execution', id, reason: 'forbidden' })),
      }
}

/**
 * The ids of the cases that have the timeline, the evidence and the links of the subject: a merge gives those of an execution to
 * another case, which the caller has to be allowed to export, too.
 */
async function holdersOf(
  db: Queryable,
  caller: Caller,
  about: CaseRow,
  executionId: string | null,
): Promise<readonly string[]> {
  if (executionId === null) return [about.id]
  const holders = await casesOfExecution(db, executionId)
  if (!holders.every(each => mayExport(caller, each, true)))
    raise('FORBIDDEN', { message: 'Who asked for the export may not export the case that this one was merged into' })
  return holders.map(({ id }) => id)
}

/**
 * Reads all that an export shows, at one moment, in the name of who asked for it with the rights of now.
 * @throws FORBIDDEN when the requester may not export the subject any more, RESOURCE_NOT_FOUND when it is gone,
 *   REQUEST_REJECTED when it holds too much
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
      return raise('FORBIDDEN', { message: 'Who asked for the export may not make it any more' })
    const holders = await holdersOf(db, caller, about, execution_id)
    const room = new Room()
    room.take(await snapshotBytes(db, holders, execution_id))
    const { executions, omitted: unread } = await readExecutions(db, caller, about, execution_id, room)
    if (execution_id !== null && executions.length === 0)
      return raise('RESOURCE_NOT_FOUND', { meta: { id: execution_id } })
    const timeline = await timelineOf(db, holders, execution_id)
    const evidence = await evidenceOf(db, holders, execution_id)
    const own = new Set(timeline.map(({ data }) => data.link_id))
    const links = (await linksOf(db, holders)).filter(({ id }) => execution_id === null || own.has(id))
    if (links.length > MAX_LINKS)
      throw new AppError('REQUEST_REJECTED', {
        status: 413,
        message: `The case has more than ${MAX_LINKS} links`,
        meta: { max_links: MAX_LINKS },
      })
    const { linked, omitted } = await readLinked(db, caller, about.project_id, links, room)
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
      omitted: [...unread, ...omitted],
    }
  })
}
