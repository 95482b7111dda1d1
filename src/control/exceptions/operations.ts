import { namesOf } from '#core/api/entry-fields.ts'
import { equalsFilter, oneOf } from '#core/api/filters.ts'
import { kinds } from '#core/api/kind.ts'
import { type Operation, operation, result } from '#core/api/operation.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { SEVERITIES } from '../activity/model.ts'
import { fileExceptionNow } from './file-exception.ts'
import {
  EXCEPTION_KIND_NAMES,
  EXCEPTION_STATUSES,
  Exception,
  ExceptionInput,
  exceptionKind,
  ResolveExceptionInput,
  ResolveManyInput,
  ResolveManyResult,
} from './model.ts'
import { acknowledgeOpen, listExceptionsById, resolveExceptions } from './store.ts'

const tag = 'Exceptions'
const exceptions = resource(exceptionKind, { path: '/exceptions', tag })

const raiseResolved = (id: string): never => raise('EXCEPTION_ALREADY_RESOLVED', { meta: { id } })

const create = operation({
  id: 'createException',
  method: 'post',
  path: '/exceptions',
  summary: 'Create an exception',
  description:
    'Files an exception of kind `manual`. If an unresolved manual exception has the same `dedup_key`, its occurrence count is incremented and it is returned with status 200.',
  tag,
  action: 'exceptions:CreateException',
  creates: exceptionKind,
  body: ExceptionInput,
  answers: { 200: Exception, 201: Exception },
  async run({ body, project, tx }) {
    const { row, created } = await fileExceptionNow(tx, {
      ...body,
      project_id: project as string,
      kind: 'manual',
      dedup_key: body.dedup_key ?? null,
    })
    return result(created ? 201 : 200, exceptionKind.present(row))
  },
})

const acknowledge = exceptions.action('acknowledge', {
  summary: 'Acknowledge an exception',
  description: 'Acknowledging again has no effect; `acknowledged_by` is the first user.',
  answers: { 200: Exception },
  raises: ['EXCEPTION_ALREADY_RESOLVED'],
  decision: () => ({ decision: 'acknowledged' }),
  async run({ tx, resource: { id }, caller }) {
    const row = await acknowledgeOpen(tx, id, caller.user.id)
    if (row) {
      tx.emit(exceptionKind, 'acknowledged', row)
      return exceptionKind.present(row)
    }
    const [existing] = await listExceptionsById(tx, [id])
    if (!existing) return raise('EXCEPTION_NOT_FOUND', { meta: { id } })
    return existing.status === 'resolved' ? raiseResolved(id) : exceptionKind.present(existing)
  },
})

const resolve = exceptions.action('resolve', {
  summary: 'Resolve an exception',
  description: 'A resolved exception is never reopened; a recurrence files a new one.',
  body: ResolveExceptionInput,
  bodyOptional: true,
  answers: { 200: Exception },
  raises: ['EXCEPTION_ALREADY_RESOLVED'],
  decision: ({ body }) => ({ decision: 'resolved', reason: body?.note }),
  async run({ tx, resource: { id }, caller, body }) {
    const [row] = await resolveExceptions(tx, [id], { userId: caller.user.id, note: body?.note ?? null })
    if (!row)
      return (await listExceptionsById(tx, [id])).length > 0
        ? raiseResolved(id)
        : raise('EXCEPTION_NOT_FOUND', { meta: { id } })
    tx.emit(exceptionKind, 'resolved', row)
    return exceptionKind.present(row)
  },
})

const failedResult = (id: string, code: 'EXCEPTION_NOT_FOUND' | 'EXCEPTION_ALREADY_RESOLVED') => {
  const { message } = new AppError(code, { meta: { id } })
  return { id, exception: null, error: { code, message } }
}

const resolveMany = operation({
  id: 'resolveExceptions',
  method: 'post',
  path: '/exceptions/resolve',
  summary: 'Resolve several exceptions',
  description:
    'Exceptions are resolved independently; each failure is reported in its result. Exceptions that the caller may not resolve are reported as not found.',
  tag,
  action: 'exceptions:ResolveException',
  about: exceptionKind,
  body: ResolveManyInput,
  answers: { 200: ResolveManyResult },
  decision: ({ body: { note } }) => ({ decision: 'resolved', reason: note }),
  async run({ tx, body: { ids, note }, caller, visible, audit }) {
    const permitted = visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }).rows
    const existing = new Set((await listExceptionsById(tx, ids, permitted)).map(({ id }) => id))
    const rows = await resolveExceptions(tx, [...existing], { userId: caller.user.id, note: note ?? null })
    for (const row of rows) tx.emit(exceptionKind, 'resolved', row)
    audit.detail.resolved = rows.map(({ id }) => id)
    const resolvedById = new Map(rows.map(row => [row.id, exceptionKind.present(row)]))
    return {
      results: ids.map(id => {
        const exception = resolvedById.get(id)
        if (exception) return { id, exception, error: null }
        return failedResult(id, existing.has(id) ? 'EXCEPTION_ALREADY_RESOLVED' : 'EXCEPTION_NOT_FOUND')
      }),
    }
  },
})

/** Expression for the end user of the session of an exception `t`. */
const actorOfSession = () => sql.fragment`(
  select s.actor_id from ${sql.identifier([kinds.get('session').table])} s where s.id = t.detail ->> 'session_id')`

export const exceptionOperations: Operation[] = [
  // exceptions_project serves the order; exceptions_unresolved, _kind, _agent and _run their filters.
  exceptions.list({
    summary: 'List exceptions',
    description: 'Newest first. Failures and anomalies filed by the platform or by callers.',
    also: [
      namesOf({
        actor: { columns: ['id', 'name', 'external_id'], id: actorOfSession },
        agent: { columns: ['name'] },
      }),
    ],
    filters: {
      status: oneOf('status', EXCEPTION_STATUSES),
      severity: oneOf('severity', SEVERITIES),
      kind: oneOf('kind', EXCEPTION_KIND_NAMES),
      agent_id: equalsFilter('agent_id'),
      orchestration_run_id: equalsFilter('orchestration_run_id'),
    },
  }),
  create,
  resolveMany,
  exceptions.get(),
  acknowledge,
  resolve,
]
