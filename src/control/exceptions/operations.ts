import { AppError, raise } from '../../core/api/errors.ts'
import { equalsFilter, oneOf } from '../../core/api/filters.ts'
import { type Operation, operation, result } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { sql } from '../../core/db/sql.ts'
import { SEVERITIES } from '../activity/model.ts'
import { fileExceptionNow } from './file-exception.ts'
import {
  EXCEPTION_KIND_NAMES,
  Exception,
  ExceptionInput,
  exceptionKind,
  ResolveExceptionInput,
  ResolveManyInput,
  ResolveManyResult,
  STATUSES,
} from './model.ts'
import { acknowledgeRow, findRows, resolveRows } from './store.ts'

const tag = 'Exceptions'
const exceptions = resource(exceptionKind, { path: '/exceptions', tag })

const resolved = (id: string): never => raise('EXCEPTION_ALREADY_RESOLVED', { meta: { id } })

const create = operation({
  id: 'createException',
  method: 'post',
  path: '/exceptions',
  summary: 'File an exception by hand',
  description:
    'Of the kind `manual`. With a `dedup_key` that an unresolved item filed by hand has, that item counts an occurrence and is answered with 200.',
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
  summary: 'Say that somebody is on it',
  description: 'An item that is acknowledged stays so, with who did it first.',
  answers: { 200: Exception },
  raises: ['EXCEPTION_ALREADY_RESOLVED'],
  async run({ tx, resource: { id }, caller }) {
    const row = await acknowledgeRow(tx, id, caller.user.id)
    if (row) {
      tx.emit(exceptionKind, 'acknowledged', row)
      return exceptionKind.present(row)
    }
    const [known] = await findRows(tx, [id])
    if (!known) return raise('EXCEPTION_NOT_FOUND', { meta: { id } })
    return known.status === 'resolved' ? resolved(id) : exceptionKind.present(known)
  },
})

const resolve = exceptions.action('resolve', {
  summary: 'Close an item',
  description: 'It is never opened again: when the matter recurs, a new item is filed.',
  body: ResolveExceptionInput,
  bodyOptional: true,
  answers: { 200: Exception },
  raises: ['EXCEPTION_ALREADY_RESOLVED'],
  async run({ tx, resource: { id }, caller, body }) {
    const [row] = await resolveRows(tx, [id], { userId: caller.user.id, note: body?.note ?? null })
    if (!row)
      return (await findRows(tx, [id])).length > 0 ? resolved(id) : raise('EXCEPTION_NOT_FOUND', { meta: { id } })
    tx.emit(exceptionKind, 'resolved', row)
    return exceptionKind.present(row)
  },
})

const refusal = (id: string, code: 'EXCEPTION_NOT_FOUND' | 'EXCEPTION_ALREADY_RESOLVED') => {
  const { message } = new AppError(code, { meta: { id } })
  return { id, exception: null, error: { code, message } }
}

const resolveMany = operation({
  id: 'resolveExceptions',
  method: 'post',
  path: '/exceptions/resolve',
  summary: 'Close several items with one note',
  description:
    'Each for itself: those that cannot be closed are answered with the reason, the others are closed. What the caller may not resolve is answered as what does not exist.',
  tag,
  action: 'exceptions:ResolveException',
  about: exceptionKind,
  body: ResolveManyInput,
  answers: { 200: ResolveManyResult },
  async run({ tx, body: { ids, note }, caller, visible }) {
    const mine = visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.id` }).rows
    const known = new Set((await findRows(tx, ids, mine)).map(({ id }) => id))
    const rows = await resolveRows(tx, [...known], { userId: caller.user.id, note: note ?? null })
    for (const row of rows) tx.emit(exceptionKind, 'resolved', row)
    const closed = new Map(rows.map(row => [row.id, exceptionKind.present(row)]))
    return {
      results: ids.map(id => {
        const exception = closed.get(id)
        if (exception) return { id, exception, error: null }
        return refusal(id, known.has(id) ? 'EXCEPTION_ALREADY_RESOLVED' : 'EXCEPTION_NOT_FOUND')
      }),
    }
  },
})

export const exceptionOperations: Operation[] = [
  // exceptions_project serves the order; exceptions_unresolved, _kind, _agent and _run their filters.
  exceptions.list({
    summary: 'List what needs attention, newest first',
    description: 'Failures and anomalies that the platform filed, or callers did, until somebody resolves them.',
    filters: {
      status: oneOf('status', STATUSES),
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
