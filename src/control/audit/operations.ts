import type { AuditEntry as Entry } from '../../core/api/audit.ts'
import { raiseInvalid } from '../../core/api/errors.ts'
import { filterConditions } from '../../core/api/filters.ts'
import { timeRangeCondition } from '../../core/api/lists.ts'
import { ndjsonStream } from '../../core/api/ndjson.ts'
import { type Context, type Operation, operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { allOf, sql } from '../../core/db/sql.ts'
import { type Caller, isAdmin } from '../../core/iam/caller.ts'
import {
  AuditExportQuery,
  AuditRecord,
  auditEntryKind,
  auditFilters,
  Verification,
  VerificationQuery,
} from './model.ts'
import { auditEntriesAfter, GLOBAL_CHAIN } from './store.ts'
import { verifierOf } from './verify.ts'

const tag = 'Audit'

/** Entries without a project are for admins whose credential is bound to none. */
const seesGlobal = (caller: Caller): boolean => isAdmin(caller) && caller.project_id === null

const EXPORT_PAGE = 500

/** The project an export or a verification is about; raises VALIDATION_FAILED when none is named. */
function namedProject({ project }: Pick<Context, 'project'>): string {
  return (
    project ??
    raiseInvalid({
      code: 'REQUIRED',
      path: 'project_id',
      message: 'is required with a credential that is bound to no project',
    })
  )
}

const exportEntries = operation({
  id: 'exportAuditEntries',
  method: 'get',
  path: '/audit-log/export',
  summary: 'Stream the entries of a project, oldest first',
  description: 'One JSON object a line. Entries made after the export began are not part of it.',
  tag,
  action: 'audit:ExportAuditEntries',
  lists: auditEntryKind,
  paged: false,
  query: AuditExportQuery,
  answers: { 200: AuditRecord },
  produces: 'application/x-ndjson',
  internal: true,
  async run(context) {
    const project = namedProject(context)
    const { query, services } = context
    const started = new Date()
    const to = query.to && query.to < started ? query.to : started
    const where = allOf([
      context.visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }).rows,
      timeRangeCondition(sql.fragment`t.created_at`, { from: query.from ?? null, to }),
      ...filterConditions(auditFilters, query),
    ])
    return ndjsonStream<Entry>(
      context,
      {
        read: (after, limit) => auditEntriesAfter(services.pool, where, after, limit),
        pageSize: EXPORT_PAGE,
        present: entry => auditEntryKind.present(entry),
      },
      { 'Content-Disposition': `attachment; filename="audit-log-${project}.ndjson"` },
    )
  },
})

const verify = operation({
  id: 'verifyAuditLog',
  method: 'get',
  path: '/audit-log/verify',
  summary: 'Check the hash chain of a project for changed and deleted entries',
  description:
    'Seals entries that are not sealed yet, then checks all of them, or those after position `after`. `checked` is the position reached: pass it as `after` to continue from there, in steps of `max_entries`, or to check only what is new. A position that no longer exists means that the end of the chain was cut off. One verification of a project runs at a time; callers that wait with the same parameters share the next one. Admins check the entries without a project by naming none. Entries removed by retention do not break the chain.',
  tag,
  action: 'audit:ListAuditEntries',
  lists: auditEntryKind,
  paged: false,
  query: VerificationQuery,
  answers: { 200: Verification },
  async run(context) {
    const { caller, project, query, services, request } = context
    const chain = project === null && seesGlobal(caller) ? GLOBAL_CHAIN : namedProject(context)
    return verifierOf(services)({ chain, after: query.after, limit: query.max_entries }, request.closed)
  },
})

const entries = resource(auditEntryKind, { path: '/audit-log', tag, param: 'entry_id' })

export const auditOperations: Operation[] = [
  // Index audit_entries_project, or audit_entries_created over all projects.
  entries.list({
    summary: 'List who did what, newest first',
    description:
      'Entries are never changed or deleted by callers; a chain of hashes, which can be verified, holds them together.',
    action: 'audit:ListAuditEntries',
    pageSize: { default: 25, max: 200 },
    filters: auditFilters,
    where: ({ caller, project }) => [project === null && !seesGlobal(caller) && sql.fragment`t.project_id is not null`],
  }),
  exportEntries,
  verify,
  entries.get({
    summary: 'Read an audit entry',
    description: 'Says who asked for what, from where, how it was decided, and what changed.',
    action: 'audit:GetAuditEntry',
  }),
]
