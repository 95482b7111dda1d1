import { filterConditions } from '#core/api/filters.ts'
import { timeRangeCondition } from '#core/api/lists.ts'
import { ndjsonStream } from '#core/api/ndjson.ts'
import { type Context, type Operation, operation } from '#core/api/operation.ts'
import { systemClock } from '#core/base/clock.ts'
import { raiseInvalid } from '#core/base/errors.ts'
import { allOf, sql } from '#core/db/sql.ts'
import { type Caller, isAdmin } from '#core/iam/caller.ts'
import { resource } from '#core/resources/resource.ts'
import type { AuditEntry as Entry } from '#core/writes/audit-entry.ts'
import {
  AuditExportQuery,
  AuditRecord,
  auditEntryKind,
  auditFilters,
  Verification,
  VerificationQuery,
} from './model.ts'
import { GLOBAL_CHAIN, listAuditEntriesAfter } from './store.ts'
import { auditVerifier } from './verify.ts'

const tag = 'Audit'

/** Whether the caller may read entries without a project: an admin with an unbound credential. */
const canReadGlobal = (caller: Caller): boolean => isAdmin(caller) && caller.project_id === null

const EXPORT_PAGE = 500

/** @throws VALIDATION_FAILED without a project */
function requireProject({ project }: Pick<Context, 'project'>): string {
  return (
    project ??
    raiseInvalid({
      code: 'REQUIRED',
      path: 'project_id',
      message: 'is required for credentials that are not bound to a project',
    })
  )
}

const exportEntries = operation({
  id: 'exportAuditEntries',
  method: 'get',
  path: '/audit-log/export',
  summary: 'Export audit entries',
  description: 'Oldest first, one JSON object per line. Entries written after the export began are excluded.',
  tag,
  action: 'audit:ExportAuditEntries',
  lists: auditEntryKind,
  paged: false,
  replica: true,
  query: AuditExportQuery,
  answers: { 200: AuditRecord },
  produces: 'application/x-ndjson',
  internal: true,
  async run(context) {
    const project = requireProject(context)
    const { db, query } = context
    const started = systemClock.now()
    const to = query.to && query.to < started ? query.to : started
    const where = allOf([
      context.visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }).rows,
      timeRangeCondition(sql.fragment`t.created_at`, { from: query.from ?? null, to }),
      ...filterConditions(auditFilters, query),
    ])
    return ndjsonStream<Entry>(
      context,
      {
        read: (after, limit) => listAuditEntriesAfter(db, where, after, limit),
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
  summary: 'Verify the audit log',
  description:
    'Seals new entries, then checks the hash chain of a project for changed and deleted entries, starting after position `after`. Pass `checked` as `after` to continue, in steps of `max_entries`, or to check only new entries. If position `after` no longer exists, the end of the chain was removed. Verifications of a project run one at a time; waiting callers with the same parameters share a result. Without a project, admins check the entries outside projects. Entries removed by retention do not break the chain; those at its beginning are skipped.',
  tag,
  action: 'audit:ListAuditEntries',
  lists: auditEntryKind,
  paged: false,
  query: VerificationQuery,
  answers: { 200: Verification },
  async run(context) {
    const { caller, project, query, services, request } = context
    const chain = project === null && canReadGlobal(caller) ? GLOBAL_CHAIN : requireProject(context)
    return auditVerifier(services).verify({ chain, after: query.after, limit: query.max_entries }, request.closed)
  },
})

const entries = resource(auditEntryKind, { path: '/audit-log', tag, param: 'entry_id' })

export const auditOperations: Operation[] = [
  // Index audit_entries_project, or audit_entries_created over all projects.
  entries.list({
    summary: 'List audit entries',
    description: 'Newest first. Callers cannot change or delete entries; a hash chain makes them verifiable.',
    action: 'audit:ListAuditEntries',
    replica: true,
    pageSize: { default: 25, max: 200 },
    filters: auditFilters,
    where: ({ caller, project }) => [
      project === null && !canReadGlobal(caller) && sql.fragment`t.project_id is not null`,
    ],
  }),
  exportEntries,
  verify,
  entries.get({
    summary: 'Get an audit entry',
    description: 'Returns the principal, the action, the client, the status and the changes of one request.',
    action: 'audit:GetAuditEntry',
  }),
]
