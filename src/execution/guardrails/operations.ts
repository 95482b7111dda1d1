import { containsFilter, equalsFilter, oneOf } from '#core/api/filters.ts'
import type { Context, Operation } from '#core/api/operation.ts'
import { warningsField } from '#core/api/warnings.ts'
import { countsText, raise, raiseInvalid } from '#core/base/errors.ts'
import { invalidateOnCommit } from '#core/db/notified-cache.ts'
import { resource } from '#core/resources/resource.ts'
import { effectOf } from '../tools/effect.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { pinnedAction } from '../tools/platform.ts'
import { listToolsById } from '../tools/store.ts'
import { checkGuardrailDocument, ruleOf, trialRule } from './document.ts'
import { evaluateRules } from './evaluate-call.ts'
import {
  DECISIONS,
  EvaluateInput,
  Evaluation,
  evaluationKind,
  type GuardrailDocument,
  GuardrailInput,
  GuardrailPatch,
  type GuardrailRow,
  GuardrailWithWarnings,
  guardrailChannel,
  guardrailKind,
  guardrailVersions,
} from './model.ts'
import { findGuardrailAttachments } from './store.ts'
import { warningsOfGuardrail } from './warnings.ts'

const tag = 'Guardrails'
const guardrails = resource(guardrailKind, { path: '/guardrails', tag, versions: guardrailVersions })
const evaluations = resource(evaluationKind, { path: '/guardrail-evaluations', tag })

const isAction = ({ type }: ToolRow): boolean => type === 'platform' || type === 'mcp'

/**
 * Validates a context tool. Writing a guardrail must not give access to tools that the caller may not call.
 * @throws TOOL_NOT_FOUND, VALIDATION_FAILED, FORBIDDEN
 */
async function checkContextTool({ tx, allow }: Pick<Context, 'tx' | 'allow'>, project_id: string, id: string) {
  const [tool] = await listToolsById(tx, project_id, [id])
  if (!tool) return raise('TOOL_NOT_FOUND', { meta: { id } })
  const refuse = (message: string) => raiseInvalid({ code: 'INVALID_VALUE', path: 'context_tool_id', message })
  if (tool.type === 'client') refuse('is a client tool, which the platform cannot call')
  if (isAction(tool) && pinnedAction(tool) === undefined) refuse('is a tool without a preset action')
  const effect = await effectOf(tx, tool)
  if (effect !== null) refuse(`calls ${effect}; context tools may only get, list or search`)
  allow('tools:CallTool', { kind: toolKind, row: tool })
}

const showWarnings = async (row: GuardrailRow, { tx }: Pick<Context, 'tx'>) =>
  warningsField(await warningsOfGuardrail(tx, row))

export const guardrailOperations: Operation[] = [
  // guardrails_project serves the order.
  guardrails.list({ filters: { name: containsFilter('name') } }),
  guardrails.create({
    description: 'A context tool requires `tools:CallTool` on it.',
    alsoActions: ['tools:CallTool'],
    body: GuardrailInput,
    validate: ({ body }) => checkGuardrailDocument(body.document),
    raises: ['TOOL_NOT_FOUND'],
    async check({ body, project, ...context }) {
      checkGuardrailDocument(body.document)
      if (body.context_tool_id) await checkContextTool(context, project, body.context_tool_id)
    },
  }),
  guardrails.get(),
  guardrails.update({
    description:
      'Applies to calls that begin after the update. A changed document creates a version. Another context tool requires `tools:CallTool` on it.',
    alsoActions: ['tools:CallTool'],
    body: GuardrailPatch,
    answers: { 200: GuardrailWithWarnings },
    show: showWarnings,
    raises: ['TOOL_NOT_FOUND'],
    async check(next, { body, stored, ...context }) {
      if (body.document) checkGuardrailDocument(body.document)
      if (body.context_tool_id && body.context_tool_id !== stored.context_tool_id)
        await checkContextTool(context, next.project_id, body.context_tool_id)
    },
  }),
  guardrails.adopt(),
  guardrails.remove({
    description:
      'Refused while the guardrail is attached to a project, an agent or a tool. Its versions are deleted as well.',
    raises: ['GUARDRAIL_HAS_REFERENCES'],
    async check({ id }, { tx }) {
      const references = await findGuardrailAttachments(tx, id)
      const counts = Object.entries(references).map(([name, { length }]) => [name, length] as const)
      if (counts.some(([, count]) => count > 0))
        raise('GUARDRAIL_HAS_REFERENCES', {
          message: `Guardrail ${id} is attached (${countsText(Object.fromEntries(counts))}) and cannot be deleted`,
          meta: { references },
        })
      invalidateOnCommit(tx, guardrailChannel, id)
    },
  }),
  ...guardrails.versions({
    answers: { 200: GuardrailWithWarnings },
    check: ({ document }) => checkGuardrailDocument(document as GuardrailDocument),
    show: showWarnings,
  }),
  guardrails.action('evaluate', {
    summary: 'Evaluate a guardrail',
    description:
      "Evaluates a hypothetical call: the context tool is called with the caller's credential, `runtime` has its current values. Nothing is executed, filed or stored. Trying another document with a context tool requires `tools:CallTool` on it.",
    action: 'guardrails:EvaluateGuardrail',
    alsoActions: ['tools:CallTool'],
    body: EvaluateInput,
    bodyOptional: true,
    answers: { 200: Evaluation },
    raises: ['TOOL_NOT_FOUND'],
    reads: true,
    async run({ services, db, resource: row, body, caller, allow }) {
      const { args = {}, guardrail_context = null, tool_id, document } = body ?? {}
      if (document) {
        checkGuardrailDocument(document)
        if (row.context_tool_id)
          allow('tools:CallTool', { kind: toolKind, row: { id: row.context_tool_id, project_id: row.project_id } })
      }
      const [tool] = tool_id === undefined ? [] : await listToolsById(db, row.project_id, [tool_id])
      if (tool_id !== undefined && !tool) raise('TOOL_NOT_FOUND', { meta: { id: tool_id } })
      const rule = document ? trialRule(row, document) : ruleOf(row)
      const [evaluation] = await evaluateRules(services, [{ scope: 'tool', rule }], {
        project_id: row.project_id,
        agent: null,
        tool: tool ? { id: tool.id, name: tool.name } : null,
        action: tool ? (isAction(tool) ? (pinnedAction(tool) ?? null) : tool.name) : null,
        args,
        guardrail_context,
        generation_id: null,
        run: null,
        caller: async () => caller,
        keepsContent: true,
      })
      return evaluation
    },
  }),
  // guardrail_evaluations_project serves the order; each filter has a separate index.
  evaluations.list({
    summary: 'List guardrail evaluations',
    description: 'Evaluations of tool calls, newest first, with the decision and the values that it is based on.',
    action: 'guardrails:ListGuardrailEvaluations',
    filters: {
      guardrail_id: equalsFilter('guardrail_id'),
      decision: oneOf('decision', DECISIONS),
      tool_id: equalsFilter('tool_id'),
      agent_id: equalsFilter('agent_id'),
      generation_id: equalsFilter('generation_id'),
      orchestration_run_id: equalsFilter('orchestration_run_id'),
    },
  }),
]
