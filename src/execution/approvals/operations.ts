import { isDeepStrictEqual } from 'node:util'
import { z } from 'zod'
import { canSeeProject } from '#core/api/access.ts'
import { namesOf } from '#core/api/entry-fields.ts'
import { columnFilter, equalsFilter, oneOf } from '#core/api/filters.ts'
import { isIdOf } from '#core/api/kind.ts'
import { enumListQuery, integerQuery, MAX_INTEGER, pageOf, parseTime } from '#core/api/lists.ts'
import { type Context, type Operation, operation, result } from '#core/api/operation.ts'
import { AppError } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { type Fragment, sql } from '#core/db/sql.ts'
import { resource } from '#core/resources/resource.ts'
import { approvalAccess, listAccess } from './end-user.ts'
import {
  APPROVAL_ORIGINS,
  APPROVAL_STATUSES,
  Approval,
  type ApprovalRow,
  ApproveInput,
  approvalKind,
  Recurrence,
  RejectInput,
  ResolveApprovalInput,
  ResolvedApproval,
} from './model.ts'
import {
  type ApprovalDecision,
  decisionReason,
  RESOLVE_ACTION,
  recordedRefusal,
  requireEdit,
  requireResolver,
  resolveApproval,
} from './resolve.ts'
import { endUserOfApproval, listRecurrences } from './store.ts'

const tag = 'Approvals'
const approvals = resource(approvalKind, { path: '/approvals', tag })

const timeQuery = z
  .string()
  .transform((value, context) => {
    const time = parseTime(value)
    if (!time) context.addIssue({ code: 'custom', message: 'must be a single ISO 8601 time' })
    return time as Date
  })
  .optional()

const expiryFilter = (describe: string, compare: (time: Fragment) => Fragment) =>
  columnFilter(timeQuery.describe(describe), time => compare(sql.fragment`${time.toISOString()}::timestamptz`))

/** Reason of a rejection by an end user who gives none. */
const DECLINED = 'Declined by the end user'

const raises = ['APPROVAL_ALREADY_RESOLVED', 'APPROVAL_NOT_FOUND'] as const

const givenReason = (value: unknown): string | null => (typeof value === 'string' ? value.trim() : null)

/** Returns the names of the arguments that an approval changes; undefined without edited arguments. */
function editedNames({ proposed_action }: ApprovalRow, edited: unknown): string[] | undefined {
  if (!isObject(edited)) return undefined
  const proposed = proposed_action?.arguments ?? {}
  return [...new Set([...Object.keys(proposed), ...Object.keys(edited)])].filter(
    name => !isDeepStrictEqual(proposed[name], edited[name]),
  )
}

/** Resolves the approval of a request and returns the response. */
async function resolveOne(
  context: Pick<Context<any, any, ApprovalRow>, 'services' | 'caller' | 'resource' | 'record'>,
  decision: ApprovalDecision,
) {
  const row = await resolveApproval(context, context.resource, decision, (tx, resolved) =>
    context.record(tx, 200, { body: approvalKind.present(resolved) }),
  )
  return result(200, approvalKind.present(row))
}

/**
 * Returns an approval that the caller may resolve.
 * @throws APPROVAL_NOT_FOUND, FORBIDDEN
 */
async function requireResolvable(
  { services, caller, allow }: Pick<Context, 'services' | 'caller' | 'allow'>,
  id: string,
) {
  const row = isIdOf(approvalKind, id) ? await approvalKind.find(services.pool, id) : null
  if (!row || !canSeeProject(caller, row.project_id)) throw new AppError('APPROVAL_NOT_FOUND', { meta: { id } })
  allow(RESOLVE_ACTION, { kind: approvalKind, row })
  return row
}

/**
 * Resolves several approvals in separate transactions. `done` lists those that an interrupted first request resolved.
 */
async function resolveEach(
  context: Context<Record<string, never>, z.output<typeof ResolveApprovalInput>>,
  done: readonly string[],
): Promise<{ results: object[] }> {
  const { ids, decision: status, reason } = context.body
  const decision: ApprovalDecision = { status, reason: decisionReason(status, reason), edited: null }
  const resolved = [...done]
  const results = []
  for (const id of new Set(ids)) {
    try {
      const found = await requireResolvable(context, id)
      const row = done.includes(id)
        ? found
        : await resolveApproval(
            context,
            found,
            decision,
            tx => void context.noteMade({ resolved: [...resolved, id] }, tx),
          )
      if (!done.includes(id)) resolved.push(id)
      results.push({ id, approval: approvalKind.present(row), error: null })
    } catch (error) {
      results.push({ id, approval: null, error: recordedRefusal(error) })
    }
  }
  context.audit.detail.resolved = results.flatMap(each => (each.error ? [] : each.id))
  return { results }
}

export const approvalOperations: Operation[] = [
  // approvals_project serves the order, approvals_pending the order of pending approvals; every other filter has a
  // separate index.
  approvals.list({
    endUser: listAccess,
    also: [
      namesOf({
        actor: {
          columns: ['id', 'name', 'external_id'],
          id: () => endUserOfApproval,
        },
        agent: { columns: ['name'] },
      }),
    ],
    filters: {
      status: oneOf('status', APPROVAL_STATUSES),
      origin: oneOf('origin', APPROVAL_ORIGINS),
      agent_id: equalsFilter('agent_id'),
      session_id: equalsFilter('session_id'),
      orchestration_run_id: equalsFilter('orchestration_run_id'),
      task_id: equalsFilter('task_id'),
      expires_from: expiryFilter('Earliest expiry time', time => sql.fragment`t.expires_at >= ${time}`),
      expires_to: expiryFilter('Latest expiry time', time => sql.fragment`t.expires_at <= ${time}`),
    },
  }),
  operation({
    id: 'listApprovalRecurrences',
    method: 'get',
    path: '/approvals/recurrences',
    summary: 'List recurring proposals',
    description: 'Returns groups of equal proposals, which a rule could decide instead of a person.',
    tag,
    action: 'approvals:ListApprovalRecurrences',
    lists: approvalKind,
    timed: false,
    query: z.object({
      status: enumListQuery(APPROVAL_STATUSES).describe('Statuses of the counted approvals. Default rejected.'),
      min_count: integerQuery(1, MAX_INTEGER).optional().describe('Minimum size of a group. Default 2.'),
    }),
    answers: { 200: pageOf(Recurrence) },
    across: {
      order: [
        ['count', 'desc'],
        [({ chain }: z.output<typeof Recurrence>) => chain.at(-1)?.created_at, 'desc'],
        ['dedup_key', 'asc'],
      ],
    },
    run: ({ db, page, visible, query: { status = ['rejected' as const], min_count = 2 } }) =>
      listRecurrences({ db, page, visible }, { status, min_count }),
  }),
  approvals.get({ endUser: approvalAccess() }),
  approvals.action('approve', {
    summary: 'Approve a proposed call',
    description:
      'A worker makes the call with the permissions of the principal that started the turn, and a follow-up turn continues with its result; `execution` contains the outcome. Edited arguments are evaluated by the guardrails again; if they are denied, the request is refused and the approval stays pending. The decision on an approval of a node is passed to its run. Concurrent decisions: the first wins, the others get APPROVAL_ALREADY_RESOLVED.',
    action: RESOLVE_ACTION,
    endUser: approvalAccess(),
    internal: true,
    mcp: true,
    body: ApproveInput,
    bodyOptional: true,
    answers: { 200: Approval },
    raises: [...raises, 'APPROVAL_EXPIRED', 'APPROVAL_INVALID_EDIT'],
    transaction: false,
    decision: ({ resource, body }) => ({ decision: 'approved', edited: editedNames(resource, body?.arguments) }),
    async run(context) {
      const { services, caller, resource, body } = context
      const value = body?.arguments
      requireResolver(caller, resource)
      const edited = value === undefined ? null : await requireEdit({ services, caller }, resource, value)
      return resolveOne(context, { status: 'approved', reason: null, edited })
    },
  }),
  approvals.action('reject', {
    summary: 'Reject a proposed call',
    description:
      'Nothing is executed. A follow-up turn reports the reason to the model; a run continues at the node that filed the approval.',
    action: RESOLVE_ACTION,
    endUser: approvalAccess({ fields: ['reason'] }),
    internal: true,
    mcp: true,
    body: RejectInput,
    bodyOptional: true,
    answers: { 200: Approval },
    raises: [...raises, 'APPROVAL_REASON_REQUIRED'],
    transaction: false,
    decision: ({ body }) => ({ decision: 'rejected', reason: givenReason(body?.reason) }),
    run: context =>
      resolveOne(context, {
        status: 'rejected',
        reason: decisionReason('rejected', context.body?.reason ?? (context.caller.end_user && DECLINED)),
        edited: null,
      }),
  }),
  operation({
    id: 'resolveApprovals',
    method: 'post',
    path: '/approvals/resolve',
    summary: 'Resolve several approvals',
    description: 'Each approval is resolved independently and has its own result in the response.',
    tag,
    action: RESOLVE_ACTION,
    gate: 'any',
    about: approvalKind,
    internal: true,
    mcp: true,
    body: ResolveApprovalInput,
    answers: { 200: ResolvedApproval },
    raises: ['APPROVAL_REASON_REQUIRED'],
    transaction: false,
    decision: ({ body: { decision, reason } }) => ({ decision, reason: givenReason(reason) }),
    run: context => resolveEach(context, []),
    again: (context, made) => resolveEach(context, made.resolved as string[]),
  }),
]
