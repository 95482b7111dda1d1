import { z } from 'zod'
import { AppError } from '../../core/api/errors.ts'
import { columnFilter, equalsFilter, oneOf } from '../../core/api/filters.ts'
import { isIdOf } from '../../core/api/kind.ts'
import { enumListQuery, pageOf, parseTime } from '../../core/api/lists.ts'
import { type Context, type Operation, operation, result } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { type Fragment, sql } from '../../core/db/sql.ts'
import { canSeeProject } from '../../core/iam/access.ts'
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
  reasonOf,
  recordedRefusal,
  requireEdit,
  requireResolver,
  resolveApproval,
} from './resolve.ts'
import { listRecurrences } from './store.ts'

const tag = 'Approvals'
const approvals = resource(approvalKind, { path: '/approvals', tag })
const resolving = 'approvals:ResolveApproval'

const instant = z
  .string()
  .transform((value, context) => {
    const time = parseTime(value)
    if (!time) context.addIssue({ code: 'custom', message: 'must be one ISO 8601 time' })
    return time as Date
  })
  .optional()

const expires = (describe: string, compare: (time: Fragment) => Fragment) =>
  columnFilter(instant.describe(describe), time => compare(sql.fragment`${time.toISOString()}::timestamptz`))

const raises = ['APPROVAL_ALREADY_RESOLVED', 'APPROVAL_NOT_FOUND'] as const

/** Resolves the item of a request and answers it as it is then. */
async function resolveOne(
  context: Pick<Context<any, any, ApprovalRow>, 'services' | 'caller' | 'resource' | 'record'>,
  decision: ApprovalDecision,
) {
  const row = await resolveApproval(context, context.resource, decision, (tx, resolved) =>
    context.record(tx, 200, { body: approvalKind.present(resolved) }),
  )
  return result(200, approvalKind.present(row))
}

/** The item of an id, as far as the caller may resolve it. Raises APPROVAL_NOT_FOUND, FORBIDDEN. */
async function resolvable({ services, caller, allow }: Pick<Context, 'services' | 'caller' | 'allow'>, id: string) {
  const row = isIdOf(approvalKind, id) ? await approvalKind.find(services.pool, id) : null
  if (!row || !canSeeProject(caller, row.project_id)) throw new AppError('APPROVAL_NOT_FOUND', { meta: { id } })
  allow(resolving, { kind: approvalKind, row })
  return row
}

/** Resolves several items, each in a transaction of its own; `done` were by a first request that was lost. */
async function resolveEach(
  context: Context<Record<string, never>, z.output<typeof ResolveApprovalInput>>,
  done: readonly string[],
): Promise<{ results: object[] }> {
  const { ids, decision: status, reason } = context.body
  const decision: ApprovalDecision = { status, reason: reasonOf(status, reason), edited: null }
  const resolved = [...done]
  const results = []
  for (const id of new Set(ids)) {
    try {
      const found = await resolvable(context, id)
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
  Object.assign(context.audit.detail, {
    decision: status,
    resolved: results.flatMap(each => (each.error ? [] : each.id)),
  })
  return { results }
}

export const approvalOperations: Operation[] = [
  // approvals_project serves the order, approvals_pending that of what waits; the others are filtered by indexes of their own.
  approvals.list({
    filters: {
      status: oneOf('status', APPROVAL_STATUSES),
      origin: oneOf('origin', APPROVAL_ORIGINS),
      agent_id: equalsFilter('agent_id'),
      session_id: equalsFilter('session_id'),
      orchestration_run_id: equalsFilter('orchestration_run_id'),
      task_id: equalsFilter('task_id'),
      expires_from: expires('Those that expire then or later', time => sql.fragment`t.expires_at >= ${time}`),
      expires_to: expires('Those that expire then or earlier', time => sql.fragment`t.expires_at <= ${time}`),
    },
  }),
  operation({
    id: 'listApprovalRecurrences',
    method: 'get',
    path: '/approvals/recurrences',
    summary: 'Group equal proposals that came again and again',
    description: 'Shows which calls are proposed repeatedly, as a hint for a rule that decides them.',
    tag,
    action: 'approvals:ListApprovalRecurrences',
    lists: approvalKind,
    timed: false,
    query: z.object({
      status: enumListQuery(APPROVAL_STATUSES).describe('Items that count, by their status; default rejected'),
      min_count: z
        .string()
        .regex(/^[1-9]\d{0,8}$/, 'must be an integer of at least 1')
        .transform(Number)
        .optional()
        .describe('Smallest group that is listed; default 2'),
    }),
    answers: { 200: pageOf(Recurrence) },
    run: ({ db, page, visible, query: { status = ['rejected' as const], min_count = 2 } }) =>
      listRecurrences({ db, page, visible }, { status, min_count }),
  }),
  approvals.get(),
  approvals.action('approve', {
    summary: 'Approve what is proposed, or other arguments for it',
    description:
      'The call is made by a worker, as whoever started the turn that proposed it, and a turn carries on with its result; `execution` says what became of it. The guardrails judge other arguments again: what they forbid is refused, and the item waits on. The decision about an item of a node is handed to its run. Of several who resolve it at once one does.',
    action: resolving,
    internal: true,
    mcp: true,
    body: ApproveInput,
    bodyOptional: true,
    answers: { 200: Approval },
    raises: [...raises, 'APPROVAL_EXPIRED', 'APPROVAL_INVALID_EDIT'],
    transaction: false,
    async run(context) {
      const { services, caller, resource, body } = context
      const given = body?.arguments
      requireResolver(caller, resource)
      const edited = given === undefined ? null : await requireEdit({ services, caller }, resource, given)
      return resolveOne(context, { status: 'approved', reason: null, edited })
    },
  }),
  approvals.action('reject', {
    summary: 'Reject what is proposed',
    description: 'Nothing is executed; a turn tells the model the reason, or the run of a node goes on with it.',
    action: resolving,
    internal: true,
    mcp: true,
    body: RejectInput,
    bodyOptional: true,
    answers: { 200: Approval },
    raises: [...raises, 'APPROVAL_REASON_REQUIRED'],
    transaction: false,
    run: context =>
      resolveOne(context, { status: 'rejected', reason: reasonOf('rejected', context.body?.reason), edited: null }),
  }),
  operation({
    id: 'resolveApprovals',
    method: 'post',
    path: '/approvals/resolve',
    summary: 'Approve or reject several approvals',
    description: 'Each by itself: the answer says of every one what came of it.',
    tag,
    action: resolving,
    gate: 'any',
    about: approvalKind,
    internal: true,
    mcp: true,
    body: ResolveApprovalInput,
    answers: { 200: ResolvedApproval },
    raises: ['APPROVAL_REASON_REQUIRED'],
    transaction: false,
    run: context => resolveEach(context, []),
    again: (context, made) => resolveEach(context, made.resolved as string[]),
  }),
]
