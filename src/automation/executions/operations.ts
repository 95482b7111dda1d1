import { z } from 'zod'
import { raise, raiseInvalid } from '../../core/api/errors.ts'
import {
  columnFilter,
  equalsFilter,
  type Filters,
  filterConditions,
  filterSchema,
  oneOf,
} from '../../core/api/filters.ts'
import { pageOf, pageResult as pageRows, textFilter } from '../../core/api/lists.ts'
import { metadataBag } from '../../core/api/metadata.ts'
import { type Context, itemOperation, type Operation, operation, result } from '../../core/api/operation.ts'
import { callerContext, ToolContextInput } from '../../core/api/tool-context.ts'
import { sql } from '../../core/db/sql.ts'
import { requirePerson } from '../../core/iam/access.ts'
import { principalRecord } from '../../core/iam/caller.ts'
import { caseKind, EvidenceInput } from '../cases/model.ts'
import { byCaller } from '../cases/timeline.ts'
import { playbookKind } from '../playbooks/model.ts'
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

/** Its keys are never touched. */
const AS_GIVEN = metadataBag(1024, 64)
const bodyLimit = () => 2 * 1024 * 1024

const StartInput = z
  .strictObject({
    case_id: z.string().min(1).max(255).describe('Case that the execution is over'),
    playbook_id: z.string().min(1).max(255).nullish().describe('Playbook to follow; default that of the case'),
    playbook_version: z.int().min(1).nullish().describe('Version to follow; default the live one'),
    input: AS_GIVEN.nullish().describe('What expressions read as `input`'),
    metadata: metadataBag(16, 8).nullish().describe('Data of your own, kept on the execution'),
    tool_context: ToolContextInput.nullish().describe('Headers that calls of tools carry'),
  })
  .meta({
    id: 'PlaybookExecutionInput',
    example: { playbook_id: 'pbk_01k5p3vd7r9hj2x8m4qcw6tz0e', case_id: 'case_01k5p3vd7r9hj2x8m4qcw6tz0e' },
  })

/** @throws RESOURCE_NOT_FOUND, VALIDATION_FAILED where neither the body nor the case names a playbook */
async function playbookOf({ tx, allow }: Pick<Context, 'tx' | 'allow'>, projectId: string, id: string | null) {
  if (id === null)
    return raiseInvalid({ code: 'REQUIRED', path: 'playbook_id', message: 'is required: the case names no playbook' })
  const playbook = await playbookKind.reference(tx, id, projectId)
  if (!playbook) return raise('RESOURCE_NOT_FOUND', { meta: { id } })
  allow('playbooks:GetPlaybook', { kind: playbookKind, row: playbook })
  return playbook
}

const start = operation({
  id: 'startPlaybookExecution',
  starts: { kind: 'playbook_execution', field: 'id' },
  method: 'post',
  path,
  summary: 'Start an execution of a playbook over a case',
  description:
    'Decided on the case; the playbook needs playbooks:GetPlaybook. The fields of the case and the input have to satisfy the schemas of the playbook. One execution at a time is under way on a case.',
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
    const playbook = await playbookOf(context, kase.project_id, body.playbook_id ?? kase.playbook_id)
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
    oneOf('status', WAITS).schema.describe('What they wait for'),
    types =>
      sql.fragment`t.status = 'waiting' and t.waiting_on ->> 'type' = any(${sql.array([types].flat() as string[], 'text')})`,
  ),
  assignee: columnFilter(
    textFilter.describe('Who has the step that they wait for'),
    value => sql.fragment`t.status = 'waiting' and t.waiting_on ->> 'assignee' = ${value}`,
  ),
} satisfies Filters

const list = operation({
  id: 'listPlaybookExecutions',
  method: 'get',
  path,
  summary: 'List executions of playbooks',
  description: 'Without steps; input, metadata and output of an execution are null where they are large together.',
  tag,
  action: 'playbooks:ListExecutions',
  // Executions are named as their case.
  lists: caseKind,
  query: filterSchema(filters),
  answers: { 200: pageOf(PlaybookExecution) },
  // playbook_executions_project serves the order; _case, _playbook and _waiting their filters.
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

const shown = async ({ tx }: Pick<Context, 'tx'>, { row, steps }: LockedExecution) =>
  presentExecutionDetail(tx, row, steps)

const Note = z.string().max(20_000).nullish()

const CompleteInput = z
  .strictObject({
    result: AS_GIVEN.nullish().describe('What the step came to, default {}; it has to satisfy result_schema'),
    note: Note.describe('What people should know about it'),
    evidence: z.array(EvidenceInput).max(50).nullish().describe('Evidence for the case, at most 50'),
  })
  .meta({ id: 'PlaybookStepCompleteInput' })

const SkipInput = z
  .strictObject({ reason: z.string().trim().min(1).max(20_000).describe('Why it is skipped') })
  .meta({ id: 'PlaybookStepSkipInput' })

const AssignInput = z
  .strictObject({ assignee: z.string().min(1).max(255).nullable().describe('Who has it from now on; null for nobody') })
  .meta({ id: 'PlaybookStepAssignInput' })

const RetryInput = z
  .strictObject({
    tool_context: ToolContextInput.nullish().describe('Headers that calls of tools carry; those of before are gone'),
  })
  .meta({ id: 'PlaybookExecutionRetryInput' })

const CancelInput = z
  .strictObject({ reason: z.string().max(1000).nullish().describe('Why, for the timeline of the case') })
  .meta({ id: 'PlaybookExecutionCancelInput' })

const PauseInput = z
  .strictObject({ reason: z.string().max(1000).nullish().describe('Why; the first reason stays') })
  .meta({ id: 'PlaybookExecutionPauseInput' })

export const executionOperations: Operation[] = [
  start,
  list,
  itemOperation(executionKind, {
    id: 'getPlaybookExecution',
    method: 'get',
    path: item,
    param,
    summary: 'Read an execution of a playbook with its steps',
    description: 'Shows which steps are done, which one is waiting, and what for.',
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
    summary: 'Complete the manual step that an execution waits for',
    description:
      'Result and evidence are written together, or neither. Of two that come at once one is taken. Work in the background completes no step that is for people.',
    tag,
    action: 'playbooks:CompleteStep',
    admit: caller => requirePerson(caller, 'playbooks:CompleteStep'),
    body: CompleteInput,
    bodyOptional: true,
    bodyLimit,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'FILE_NOT_FOUND', 'RESOURCE_NOT_FOUND'],
    async run(context) {
      const { resource, params, body } = context
      const completion = { result: body?.result ?? {}, note: body?.note ?? null, evidence: body?.evidence ?? [] }
      return shown(context, await completeStep(context, resource, params.step_key, completion))
    },
  }),
  itemOperation(executionKind, {
    id: 'skipPlaybookStep',
    method: 'post',
    path: `${stepPath}/skip`,
    param,
    summary: 'Skip the manual step that an execution waits for',
    description:
      'Where the playbook says that it may be skipped. Work in the background skips no step that is for people.',
    tag,
    action: 'playbooks:SkipStep',
    admit: caller => requirePerson(caller, 'playbooks:SkipStep'),
    body: SkipInput,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'RESOURCE_NOT_FOUND'],
    async run(context) {
      const { resource, params, body } = context
      return shown(context, await skipStep(context, resource, params.step_key, body.reason))
    },
  }),
  itemOperation(executionKind, {
    id: 'assignPlaybookStep',
    method: 'post',
    path: `${stepPath}/assign`,
    param,
    summary: 'Say who has the manual step that an execution waits for',
    description: 'Who completes the step is not bounded by it: it says whose work it is.',
    tag,
    action: 'playbooks:CompleteStep',
    body: AssignInput,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'RESOURCE_NOT_FOUND'],
    async run(context) {
      const { resource, params, body } = context
      return shown(context, await assignStep(context, resource, params.step_key, body.assignee))
    },
  }),
  itemOperation(executionKind, {
    id: 'retryPlaybookExecution',
    starts: { kind: 'playbook_execution', field: 'id' },
    method: 'post',
    path: `${item}/retry`,
    param,
    summary: 'Start a failed execution anew from the step that failed',
    description:
      'In the version that it follows, as the caller. What earlier steps came to is kept; the case must be open to executions and the playbook still there.',
    tag,
    action: 'playbooks:RetryExecution',
    body: RetryInput,
    bodyOptional: true,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'CASE_STATE_CONFLICT', 'INVALID_TOOL_CONTEXT_KEY', 'PROJECT_PAUSED'],
    async run(context) {
      const { services, resource, body } = context
      const tool_context = callerContext(body?.tool_context, services.config.TOOL_CONTEXT_HEADER_PREFIX)
      return shown(context, await retryExecution(context, resource, tool_context))
    },
  }),
  itemOperation(executionKind, {
    id: 'pausePlaybookExecution',
    method: 'post',
    path: `${item}/pause`,
    param,
    summary: 'Pause an execution with everything below it',
    description:
      'What is under way goes on to its end, nothing else begins. People can complete the step that waits for them meanwhile.',
    tag,
    action: 'playbooks:PauseExecution',
    body: PauseInput,
    bodyOptional: true,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT'],
    run: async context => shown(context, await pauseExecution(context, context.resource, context.body?.reason ?? null)),
  }),
  itemOperation(executionKind, {
    id: 'resumePlaybookExecution',
    method: 'post',
    path: `${item}/resume`,
    param,
    summary: 'Lift the pause of an execution',
    description: 'Runs that its steps started were paused with it, and are resumed by themselves.',
    tag,
    action: 'playbooks:ResumeExecution',
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT', 'PROJECT_PAUSED'],
    run: async context => shown(context, await resumeExecution(context, context.resource)),
  }),
  itemOperation(executionKind, {
    id: 'cancelPlaybookExecution',
    method: 'post',
    path: `${item}/cancel`,
    param,
    summary: 'Cancel an execution with everything below it',
    description: 'Steps that have completed keep their results; the case stays open.',
    tag,
    action: 'playbooks:CancelExecution',
    body: CancelInput,
    bodyOptional: true,
    answers: { 200: PlaybookExecution },
    raises: ['PLAYBOOK_EXECUTION_CONFLICT'],
    run: async context =>
      shown(context, await cancelExecution(context, context.resource, context.body?.reason ?? null)),
  }),
]
