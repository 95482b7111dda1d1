import { z } from 'zod'
import { caseKind, EvidenceInput } from '#automation/cases/model.ts'
import { byCaller } from '#automation/cases/timeline.ts'
import { requirePerson } from '#core/api/access.ts'
import { columnFilter, equalsFilter, type Filters, filterConditions, filterSchema, oneOf } from '#core/api/filters.ts'
import { pageOf, pageResult as pageRows, textFilter } from '#core/api/lists.ts'
import { metadataBag } from '#core/api/metadata.ts'
import { type Context, itemOperation, type Operation, operation, result } from '#core/api/operation.ts'
import { callerContext, ToolContextInput } from '#core/api/tool-context.ts'
import { raise, raiseInvalid } from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { playbookKind } from '../definition/model.ts'
import {
  assignStep,
  cancelExecution,
  completeStep,
  pauseExecution,
  resumeExecution,
  retryExecution,
  skipStep,
} from './command.ts'
import {
  EXECUTION_STATUSES,
  type ExecutionRow,
  executionKind,
  PlaybookExecution,
  presentExecution,
  WAITS,
} from './model.ts'
import { presentExecutionDetail } from './present-execution.ts'
import type { LockedExecution } from './run-driver.ts'
import { startExecution } from './start.ts'
import { executionListColumns } from './store.ts'

const tag = 'Playbooks'
const path = '/playbook-executions'
const item = `${path}/{execution_id}`
const param = 'execution_id'
const stepPath = `${item}/steps/{step_key}`

/** JSON object stored with its keys unchanged. */
const JsonObject = metadataBag(1024, 64)
const bodyLimit = () => 2 * 1024 * 1024

const StartInput = z
  .strictObject({
    case_id: z.string().min(1).max(255).describe('ID of the case'),
    playbook_id: z.string().min(1).max(255).nullish().describe('ID of the playbook. Default the playbook of the case.'),
    playbook_version: z.int().min(1).nullish().describe('Version of the playbook. Default the live version.'),
    input: JsonObject.nullish().describe('Value of `input` in expressions'),
    metadata: metadataBag(16, 8).nullish().describe('Arbitrary client data. Not interpreted.'),
    tool_context: ToolContextInput.nullish().describe('Tool context headers'),
  })
  .meta({
    id: 'PlaybookExecutionInput',
    example: { playbook_id: 'pbk_01k5p3vd7r9hj2x8m4qcw6tz0e', case_id: 'case_01k5p3vd7r9hj2x8m4qcw6tz0e' },
  })

/** @throws RESOURCE_NOT_FOUND, VALIDATION_FAILED if neither the body nor the case specifies a playbook */
async function requirePlaybook({ tx, allow }: Pick<Context, 'tx' | 'allow'>, projectId: string, id: string | null) {
  if (id === null)
    return raiseInvalid({ code: 'REQUIRED', path: 'playbook_id', message: 'is required: the case has no playbook' })
  const playbook = await playbookKind.reference(tx, id, projectId)
  if (!playbook) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  allow('playbooks:GetPlaybook', { kind: playbookKind, row: playbook })
  return playbook
}

const startOperation = operation({
  id: 'startPlaybookExecution',
  starts: { kind: 'playbook_execution', field: 'id' },
  method: 'post',
  path,
  summary: 'Start a playbook execution',
  description:
    'Requires playbooks:StartExecution on the case and playbooks:GetPlaybook on the playbook. The case fields and the input must match the schemas of the playbook. A case has at most one active execution.',
  tag,
  action: 'playbooks:StartExecution',
  alsoActions: ['playbooks:GetPlaybook'],
  creates: executionKind,
  under: { kind: caseKind, field: 'case_id' },
  body: StartInput,
  bodyLimit,
  answers: { 201: PlaybookExecution },
  raises: [
    'INVALID_TOOL_CONTEXT_KEY',
    'RESOURCE_NOT_FOUND',
    'CASE_STATE_CONFLICT',
    'PLAYBOOK_EXECUTION_CONFLICT',
    'PROJECT_PAUSED',
  ],
  async run(context) {
    const { tx, services, body, caller, project } = context
    const kase = await caseKind.find(tx, body.case_id)
    if (!kase || kase.project_id !== project) return raise('RESOURCE_NOT_FOUND', { meta: { id: body.case_id } })
    const tool_context = callerContext(body.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
    const playbook = await requirePlaybook(context, kase.project_id, body.playbook_id ?? kase.playbook_id)
    const { row, steps } = await startExecution(tx, services, kase.id, {
      playbook,
      version: body.playbook_version ?? undefined,
      input: body.input ?? {},
      metadata: body.metadata ?? null,
      tool_context,
      authority: principalRecord(caller),
      by: byCaller(caller),
    })
    return result(201, presentExecution(row, steps))
  },
})

const filters = {
  case_id: equalsFilter('case_id'),
  playbook_id: equalsFilter('playbook_id'),
  status: oneOf('status', EXECUTION_STATUSES),
  waiting_on_type: columnFilter(
    oneOf('status', WAITS).schema.describe('Type of the condition that the execution waits for'),
    types =>
      sql.fragment`t.status = 'waiting' and t.waiting_on ->> 'type' = any(${sql.array([types].flat() as string[], 'text')})`,
  ),
  assignee: columnFilter(
    textFilter.describe('Assignee of the waiting step'),
    value => sql.fragment`t.status = 'waiting' and t.waiting_on ->> 'assignee' = ${value}`,
  ),
} satisfies Filters

const listOperation = operation({
  id: 'listPlaybookExecutions',
  method: 'get',
  path,
  summary: 'List playbook executions',
  description: 'Steps are omitted. Input, metadata and output of an execution are null if they are large in total.',
  tag,
  action: 'playbooks:ListExecutions',
  // Policies refer to executions by their case.
  lists: caseKind,
  query: filterSchema(filters),
  answers: { 200: pageOf(PlaybookExecution) },
  // playbook_executions_project serves the order; _case, _playbook and _waiting serve the filters.
  run(context) {
    const { rows } = context.visible({ project: sql.fragment`t.project_id`, id: sql.fragment`t.case_id` })
    return pageRows<ExecutionRow>(context, {
      columns: executionListColumns,
      from: sql.fragment`playbook_executions t`,
      rows,
      filters: filterConditions(filters, context.query),
      time: sql.fragment`t.created_at`,
      order: sql.fragment`t.created_at desc, t.id desc`,
      key: sql.fragment`t.id`,
      present: row => presentExecution(row),
    })
  },
})

const presentLocked = async ({ tx }: Pick<Context, 'tx'>, { row, steps }: LockedExecution) =>
  presentExecutionDetail(tx, row, steps)

const Note = z.string().max(20_000).nullish()

const CompleteInput = z
  .strictObject({
    result: JsonObject.nullish().describe('Result of the step, validated against its result_schema. Default {}.'),
    note: Note.describe('Note on the step'),
    evidence: z.array(EvidenceInput).max(50).nullish().describe('Evidence to add to the case. At most 50.'),
  })
  .meta({ id: 'PlaybookStepCompleteInput' })

const SkipInput = z
  .strictObject({ reason: z.string().trim().min(1).max(20_000).describe('Reason for skipping the step') })
  .meta({ id: 'PlaybookStepSkipInput' })

const AssignInput = z
  .strictObject({
    assignee: z.string().min(1).max(255).nullable().describe('Name or ID of the assignee. Null to unassign.'),
  })
  .meta({ id: 'PlaybookStepAssignInput' })

const RetryInput = z
  .strictObject({
    tool_context: ToolContextInput.nullish().describe('Tool context headers; replaces the previous tool context'),
  })
  .meta({ id: 'PlaybookExecutionRetryInput' })

const CancelInput = z
  .strictObject({ reason: z.string().max(1000).nullish().describe('Reason, recorded in the timeline of the case') })
  .meta({ id: 'PlaybookExecutionCancelInput' })

const PauseInput = z
  .strictObject({
    reason: z.string().max(1000).nullish().describe('Reason for the pause. A paused execution keeps its first reason.'),
  })
  .meta({ id: 'PlaybookExecutionPauseInput' })

export const executionOperations: Operation[] = [
  startOperation,
  listOperation,
  itemOperation(executionKind, {
    id: 'getPlaybookExecution',
    method: 'get',
    path: item,
    param,
    summary: 'Get a playbook execution',
    description: 'Includes all steps and the condition that the execution waits for.',
    tag,
    action: 'playbooks:GetExecution',
    answers: { 200: PlaybookExecution },
    run: ({ db, resource }) => presentExecutionDetail(db, resource),
  }),
  itemOperation(executionKind, {
    id: 'completePlaybookStep',
    method: 'post',
    path: `${stepPath}/complete`,
    param,
    summary: 'Complete the current manual step',
    description:
      'Result and evidence are stored in one transaction. Concurrent requests: the first wins, the others get PLAYBOOK_EXECUTION_CONFLICT. Not available to background work, because manual steps are for people.',
    tag,
    action: 'playbooks:CompleteStep',
    admit: caller => requirePerson(caller, 'playbooks:CompleteStep'),
    body: CompleteInput,
    bodyOptional: true,
    bodyLimit,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'FILE_NOT_FOUND', 'RESOURCE_NOT_FOUND'],
    decision: ({ params, body }) => ({
      decision: 'completed',
      step: params.step_key,
      edited: Object.keys(body?.result ?? {}),
      reason: body?.note,
    }),
    async run(context) {
      const { resource, params, body } = context
      const completion = { result: body?.result ?? {}, note: body?.note ?? null, evidence: body?.evidence ?? [] }
      return presentLocked(context, await completeStep(context, resource, params.step_key, completion))
    },
  }),
  itemOperation(executionKind, {
    id: 'skipPlaybookStep',
    method: 'post',
    path: `${stepPath}/skip`,
    param,
    summary: 'Skip the current manual step',
    description:
      'Requires a step that the playbook declares skippable. Not available to background work, because manual steps are for people.',
    tag,
    action: 'playbooks:SkipStep',
    admit: caller => requirePerson(caller, 'playbooks:SkipStep'),
    body: SkipInput,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'RESOURCE_NOT_FOUND'],
    decision: ({ params, body }) => ({ decision: 'skipped', step: params.step_key, reason: body.reason }),
    async run(context) {
      const { resource, params, body } = context
      return presentLocked(context, await skipStep(context, resource, params.step_key, body.reason))
    },
  }),
  itemOperation(executionKind, {
    id: 'assignPlaybookStep',
    method: 'post',
    path: `${stepPath}/assign`,
    param,
    summary: 'Assign the current manual step',
    description: 'The assignee is informational: other principals can still complete the step.',
    tag,
    action: 'playbooks:CompleteStep',
    body: AssignInput,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'RESOURCE_NOT_FOUND'],
    decision: ({ params, body: { assignee } }) => ({
      decision: 'assigned',
      step: params.step_key,
      assigned_to: assignee,
    }),
    async run(context) {
      const { resource, params, body } = context
      return presentLocked(context, await assignStep(context, resource, params.step_key, body.assignee))
    },
  }),
  itemOperation(executionKind, {
    id: 'retryPlaybookExecution',
    starts: { kind: 'playbook_execution', field: 'id' },
    method: 'post',
    path: `${item}/retry`,
    param,
    summary: 'Retry a failed execution',
    description:
      'Restarts from the failed step, in the pinned version and with the permissions of the caller. Results of earlier steps are kept. The case must not be closed or have another active execution, and the playbook must still exist.',
    tag,
    action: 'playbooks:RetryExecution',
    body: RetryInput,
    bodyOptional: true,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'CASE_STATE_CONFLICT', 'INVALID_TOOL_CONTEXT_KEY', 'PROJECT_PAUSED'],
    async run(context) {
      const { services, resource, body } = context
      const tool_context = callerContext(body?.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
      return presentLocked(context, await retryExecution(context, resource, tool_context))
    },
  }),
  itemOperation(executionKind, {
    id: 'pausePlaybookExecution',
    method: 'post',
    path: `${item}/pause`,
    param,
    summary: 'Pause an execution',
    description:
      'Active work finishes; no new step starts until the execution is resumed. A waiting manual step can still be completed. Runs that its steps started are paused too.',
    tag,
    action: 'playbooks:PauseExecution',
    body: PauseInput,
    bodyOptional: true,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT'],
    run: async context =>
      presentLocked(context, await pauseExecution(context, context.resource, context.body?.reason ?? null)),
  }),
  itemOperation(executionKind, {
    id: 'resumePlaybookExecution',
    method: 'post',
    path: `${item}/resume`,
    param,
    summary: 'Resume an execution',
    description: 'Runs that its steps started remain paused and must be resumed separately.',
    tag,
    action: 'playbooks:ResumeExecution',
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'PROJECT_PAUSED'],
    run: async context => presentLocked(context, await resumeExecution(context, context.resource)),
  }),
  itemOperation(executionKind, {
    id: 'cancelPlaybookExecution',
    method: 'post',
    path: `${item}/cancel`,
    param,
    summary: 'Cancel an execution',
    description:
      'Also cancels the runs that its steps started. Completed steps keep their results; the case becomes open.',
    tag,
    action: 'playbooks:CancelExecution',
    body: CancelInput,
    bodyOptional: true,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT'],
    run: async context =>
      presentLocked(context, await cancelExecution(context, context.resource, context.body?.reason ?? null)),
  }),
]
