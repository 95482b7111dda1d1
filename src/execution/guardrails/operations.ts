import { countsText, raise, raiseInvalid } from '../../core/api/errors.ts'
import { equalsFilter, oneOf } from '../../core/api/filters.ts'
import type { Context, Operation } from '../../core/api/operation.ts'
import { resource } from '../../core/api/resource.ts'
import { madeBy, versionOperations } from '../../core/api/version-archive.ts'
import { versionNumber } from '../../core/api/versions.ts'
import { shownWarnings } from '../../core/api/warnings.ts'
import { invalidateOnCommit } from '../../core/db/notified-cache.ts'
import { effectOf } from '../tools/effect.ts'
import { type ToolRow, toolKind } from '../tools/model.ts'
import { pinnedAction } from '../tools/platform.ts'
import { toolsOfIds } from '../tools/store.ts'
import { guardrailVersions, versionedGuardrails } from './archive.ts'
import { checkGuardrailDocument, ruleOf, trialRule } from './document.ts'
import { evaluateRules } from './evaluate-call.ts'
import { guardrailChannel } from './guardrail-cache.ts'
import {
  DECISIONS,
  EvaluateInput,
  Evaluation,
  evaluationKind,
  GuardrailInput,
  GuardrailPatch,
  GuardrailVersion,
  GuardrailWithWarnings,
  guardrailKind,
  RestoreGuardrailInput,
} from './model.ts'
import { attachedTo } from './store.ts'
import { warningsOfGuardrail } from './warnings.ts'

const tag = 'Guardrails'
const path = '/guardrails'
const guardrails = resource(guardrailKind, { path, tag })
const evaluations = resource(evaluationKind, { path: '/guardrail-evaluations', tag })

const isAction = ({ type }: ToolRow): boolean => type === 'platform' || type === 'mcp'

/**
 * Validates a context tool. Who may write a guardrail may not thereby have tools called that it may not call itself.
 * @throws TOOL_NOT_FOUND, VALIDATION_FAILED, FORBIDDEN
 */
async function checkContextTool({ tx, allow }: Pick<Context, 'tx' | 'allow'>, project_id: string, id: string) {
  const [tool] = await toolsOfIds(tx, project_id, [id])
  if (!tool) return raise('TOOL_NOT_FOUND', { meta: { id } })
  const wrong = (message: string) => raiseInvalid({ code: 'INVALID_VALUE', path: 'context_tool_id', message })
  if (tool.type === 'client') wrong('names a client tool, which the platform cannot call')
  if (isAction(tool) && pinnedAction(tool) === undefined) wrong('names a tool whose presets pin no action')
  const effect = await effectOf(tx, tool)
  if (effect !== null) wrong(`names a tool that calls ${effect}; guardrails ask platform tools to get, list or search`)
  allow('tools:CallTool', { kind: toolKind, row: tool })
}

export const guardrailOperations: Operation[] = [
  // guardrails_project serves the order.
  guardrails.list(),
  guardrails.create({
    description: 'Naming a context tool needs `tools:CallTool` on it.',
    alsoActions: ['tools:CallTool'],
    body: GuardrailInput,
    raises: ['TOOL_NOT_FOUND'],
    async check({ body, project, ...context }) {
      checkGuardrailDocument(body.document)
      if (body.context_tool_id) await checkContextTool(context, project, body.context_tool_id)
    },
    make: ({ tx, body: { version_label, ...body }, project, caller }) =>
      versionedGuardrails.insert(tx, { ...body, project_id: project }, madeBy(caller, version_label)),
  }),
  guardrails.get(),
  guardrails.update({
    description:
      'Acts on the calls that begin after it. Another document makes a version. Naming another context tool needs `tools:CallTool` on it.',
    alsoActions: ['tools:CallTool'],
    body: GuardrailPatch,
    answers: { 200: GuardrailWithWarnings },
    show: async (row, { tx }) => shownWarnings(await warningsOfGuardrail(tx, row)),
    quiet: true,
    raises: ['TOOL_NOT_FOUND'],
    async check(next, { body, stored, ...context }) {
      if (body.document) checkGuardrailDocument(body.document)
      if (body.context_tool_id && body.context_tool_id !== stored.context_tool_id)
        await checkContextTool(context, next.project_id, body.context_tool_id)
    },
    write: (next, { stored, body, caller, tx }) =>
      versionedGuardrails.change(tx, stored, guardrailKind.changes(stored, next), madeBy(caller, body.version_label)),
  }),
  guardrails.adopt({ adopt: (stored, { tx, caller }) => versionedGuardrails.adopt(tx, stored, caller) }),
  guardrails.remove({
    description: 'Refused while it is attached to a project, an agent or a tool. Its versions go with it.',
    raises: ['GUARDRAIL_HAS_REFERENCES'],
    async check({ id }, { tx }) {
      const references = await attachedTo(tx, id)
      const counts = Object.entries(references).map(([name, { length }]) => [name, length] as const)
      if (counts.some(([, count]) => count > 0))
        raise('GUARDRAIL_HAS_REFERENCES', {
          message: `The guardrail ${id} is still attached (${countsText(Object.fromEntries(counts))})`,
          meta: { references },
        })
      invalidateOnCommit(tx, guardrailChannel, id)
    },
  }),
  ...versionOperations(guardrailKind, { path, tag, record: GuardrailVersion, archive: guardrailVersions }),
  guardrails.action('restore', {
    id: 'restoreGuardrailVersion',
    path: `${path}/{guardrail_id}/versions/{version}/restore`,
    summary: 'Write the document of an earlier version as the next one',
    description: 'It must still be one that could be written today. Name, description and context tool stay.',
    action: 'guardrails:RestoreGuardrailVersion',
    body: RestoreGuardrailInput,
    bodyOptional: true,
    answers: { 200: GuardrailWithWarnings },
    async run(context) {
      const version = versionNumber(context.params.version)
      const row = await versionedGuardrails.restore(context, version, context.body?.label)
      return { ...guardrailKind.present(row), ...shownWarnings(await warningsOfGuardrail(context.tx, row)) }
    },
  }),
  guardrails.action('evaluate', {
    summary: 'Try a guardrail on arguments',
    description:
      'What it would say of a call now: the context tool is called with the credential of the caller, values of `runtime` are those of this moment. Nothing is executed, filed or kept. Trying another document with a context tool needs `tools:CallTool` on that.',
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
      const [tool] = tool_id === undefined ? [] : await toolsOfIds(db, row.project_id, [tool_id])
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
  // guardrail_evaluations_project serves the order; each filter has an index of its own.
  evaluations.list({
    summary: 'List what guardrails said of calls, newest first',
    description: 'Each with the decision, what led to it, and the call it was about.',
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
