import { containsFilter, equalsFilter, oneOf } from '#core/api/filters.ts'
import { itemOperation, type Operation, operation } from '#core/api/operation.ts'
import { parse } from '#core/api/validate.ts'
import { resource } from '#core/resources/resource.ts'
import { spendRefusals } from '../generations/request/create.ts'
import { checkBackendFields, requireBackendPermission, resolveBackend } from './backend.ts'
import {
  answerDecision,
  answerDecisionAgain,
  type DecisionBatch,
  insertDecisions,
  recordedAs,
} from './create-decisions.ts'
import { inputTexts, MAX_DECISION_INPUT_BYTES } from './input.ts'
import {
  Batch,
  BatchInput,
  DECISION_STATUSES,
  DeciderInput,
  DeciderPatch,
  type DeciderRow,
  Decision,
  DecisionInput,
  deciderKind,
  deciderVersions,
  decisionKind,
  InlineDecisionInput,
} from './model.ts'
import { Questions } from './questions.ts'

const decisionWaiting = {
  default: false,
  running: ['queued', 'running'],
  done: ['completed'],
  failed: ['failed'],
  paused: [],
  poll: 'getDecision',
}

const tag = 'Deciders'
const deciders = resource(deciderKind, { path: '/deciders', tag, versions: deciderVersions })
const decisions = resource(decisionKind, { path: '/decisions', tag })

/** Errors of an invalid backend. */
const refusals = [
  'AGENT_NOT_FOUND',
  'TOOL_NOT_FOUND',
  'DECIDER_AGENT_NOT_TOOL_LESS',
  'DECIDER_TOOL_NOT_CALLABLE',
] as const
const BACKEND_PERMISSIONS = ['agents:CreateAgentGeneration', 'tools:CallTool']

/** Limit for the input plus inline questions. */
const bodyLimit = () => MAX_DECISION_INPUT_BYTES + 2 * 1024 * 1024

const decisionBatch = ({
  id,
  project_id,
  version,
  author,
  questions,
  agent_id,
  tool_id,
}: DeciderRow): DecisionBatch => ({
  project_id,
  decider: { id, version, author },
  questions,
  backend: { agent_id, tool_id },
})

const deciderOperations: Operation[] = [
  // deciders_project serves the order.
  deciders.list({ filters: { name: containsFilter('name') } }),
  deciders.create({
    description:
      'A decider with an agent requires `agents:CreateAgentGeneration` on it, a decider with a tool `tools:CallTool`. Callers of the decider do not need these permissions.',
    alsoActions: BACKEND_PERMISSIONS,
    body: DeciderInput,
    validate: ({ body }) => checkBackendFields(body),
    raises: [...refusals, 'NAME_CONFLICT'],
    check: async ({ tx, body, project, allow }) =>
      requireBackendPermission(allow, await resolveBackend(tx, project, body)),
  }),
  deciders.get(),
  deciders.update({
    description:
      'Setting an agent replaces a tool and vice versa. Changed questions create a version; existing decisions keep their version. Another agent or tool requires permission to use it.',
    alsoActions: BACKEND_PERMISSIONS,
    body: DeciderPatch,
    raises: [...refusals, 'NAME_CONFLICT', 'VERSION_CONFLICT'],
    async change(next, { body, stored, tx, allow }) {
      const { agent_id, tool_id } = body
      const backendRef = {
        agent_id: agent_id === undefined && tool_id != null ? null : next.agent_id,
        tool_id: tool_id === undefined && agent_id != null ? null : next.tool_id,
      }
      const backend = await resolveBackend(tx, stored.project_id, backendRef)
      if (backendRef.agent_id !== stored.agent_id || backendRef.tool_id !== stored.tool_id)
        requireBackendPermission(allow, backend)
      return { ...next, ...backendRef }
    },
  }),
  deciders.adopt(),
  deciders.remove({ description: 'Existing decisions remain; active ones are completed.' }),
  ...deciders.versions({
    description: 'Writes the questions of that version as the next one. Existing decisions keep their version.',
    // Stored questions were valid for the release that wrote them.
    check: ({ questions }) => parse(Questions, questions, 'questions'),
  }),
]

const DECISION_RAISES = [...refusals, 'PROJECT_PAUSED', ...spendRefusals] as const

const decisionOperations: Operation[] = [
  itemOperation(deciderKind, {
    id: 'createDecision',
    command: ['deciders', 'decide'],
    starts: { kind: 'decision', field: 'id' },
    method: 'post',
    path: '/deciders/{decider_id}/decisions',
    summary: 'Create a decision',
    description:
      'Returns a queued decision immediately; with `wait`, returns it after it has settled (completed or failed) or after SYNC_WAIT_SECONDS. The input is not part of the record.',
    tag,
    action: 'deciders:CreateDecision',
    body: DecisionInput,
    waiting: decisionWaiting,
    bodyLimit,
    answers: { 201: Decision },
    raises: [...DECISION_RAISES],
    transaction: false,
    async run(context) {
      const { services, resource: decider, body } = context
      const [text] = inputTexts([body.input], () => 'input')
      return answerDecision(context, body.wait === true, () =>
        services.write(async tx => {
          const [row] = await insertDecisions(
            tx,
            context,
            decisionBatch(decider),
            [{ text, metadata: body.metadata }],
            {
              permission: () => ({ action: 'deciders:CreateDecision', kind: 'decider', id: decider.id }),
            },
          )
          context.record(tx, 201, recordedAs(row, body.wait === true))
          return row
        }),
      )
    },
    again: answerDecisionAgain,
  }),
  itemOperation(deciderKind, {
    id: 'createDecisionBatch',
    command: ['deciders', 'decide-many'],
    method: 'post',
    path: '/deciders/{decider_id}/decisions/batch',
    summary: 'Create decisions in a batch',
    description: 'Returns queued decisions immediately, in the order of the inputs. Creates all or none.',
    tag,
    action: 'deciders:CreateDecision',
    body: BatchInput,
    bodyLimit,
    answers: { 201: Batch },
    raises: [...DECISION_RAISES],
    async run({ tx, services, caller, resource: decider, body }) {
      const texts = inputTexts(
        body.inputs.map(({ input }) => input),
        index => `inputs[${index}].input`,
      )
      const items = body.inputs.map(({ metadata }, index) => ({ text: texts[index], metadata }))
      const rows = await insertDecisions(tx, { services, caller }, decisionBatch(decider), items, {
        permission: () => ({ action: 'deciders:CreateDecision', kind: 'decider', id: decider.id }),
      })
      return { data: rows.map(decisionKind.present) }
    },
  }),
  operation({
    id: 'createInlineDecision',
    starts: { kind: 'decision', field: 'id' },
    method: 'post',
    path: '/decisions',
    summary: 'Create an inline decision',
    description:
      'Same as `POST /deciders/{decider_id}/decisions`, with the questions and their agent or tool in the request. Requires `agents:CreateAgentGeneration` on the agent or `tools:CallTool` on the tool.',
    tag,
    action: 'deciders:CreateInlineDecision',
    alsoActions: BACKEND_PERMISSIONS,
    creates: decisionKind,
    body: InlineDecisionInput,
    waiting: decisionWaiting,
    bodyLimit,
    answers: { 201: Decision },
    raises: [...DECISION_RAISES],
    transaction: false,
    async run(context) {
      const { services, body, project, allow } = context
      const [text] = inputTexts([body.input], () => 'input')
      return answerDecision(context, body.wait === true, () =>
        services.write(async tx => {
          const { questions, agent_id, tool_id } = body
          const batch = { project_id: project as string, decider: null, questions, backend: { agent_id, tool_id } }
          const [row] = await insertDecisions(tx, context, batch, [{ text, metadata: body.metadata }], {
            permission: id => ({ action: 'deciders:CreateInlineDecision', kind: 'decision', id }),
            admit: backend => requireBackendPermission(allow, backend),
          })
          context.record(tx, 201, { id: row.id, ...recordedAs(row, body.wait === true) })
          return row
        }),
      )
    },
    again: answerDecisionAgain,
  }),
  // decisions_project serves the order, decisions_decider the decider filter.
  decisions.list({
    action: 'deciders:ListDecisions',
    filters: { decider_id: equalsFilter('decider_id'), status: oneOf('status', DECISION_STATUSES) },
  }),
  decisions.get({ action: 'deciders:GetDecision' }),
]

export const allDeciderOperations: Operation[] = [...deciderOperations, ...decisionOperations]
