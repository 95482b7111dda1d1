import { embedderOf } from '#content/index/embeddings/embedder.ts'
import { isIdOf } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { requireAll } from '#core/api/references.ts'
import { AppError, raise, raiseInvalidValue } from '#core/base/errors.ts'
import type { Services } from '#core/base/services.ts'
import type { Tx } from '#core/writes/writer.ts'
import { type AgentRow, agentKind } from '#execution/agents/model.ts'
import { checkOutputSchema } from '#execution/agents/schema.ts'
import { resolveBackend } from '#execution/deciders/backend.ts'
import { type DeciderRow, deciderKind } from '#execution/deciders/model.ts'
import { aiProviderKind } from '#execution/providers/model.ts'
import { type ToolRow, toolKind } from '#execution/tools/model.ts'
import { lockDefaultRoute } from '#identity/projects/default-model-route.ts'
import { datasetKind } from '../datasets/model.ts'
import type { Scorer, ScorerOf } from './scorers.ts'

/** Arguments of scoring tools that the platform sets; presets cannot contain them. */
const PLATFORM_ARGUMENTS = ['input', 'output', 'object', 'expected', 'item']

/** Tool types with several operations, selected by `action`. */
const MULTI_ACTION_TYPES = ['mcp', 'platform']

type CheckContext = { tx: Tx; services: Services; project: string }

/** Resources that scorers refer to. */
export type ScorerReferences = {
  tools: ToolRow[]
  deciders: Map<string, DeciderRow>
  ai_provider_ids: string[]
  inherits_route: boolean
}

/**
 * Checks scorers against an agent, and locks the resources that they refer to until the transaction ends.
 * @param agent the agent version to be scored
 * @throws TOOL_NOT_FOUND, AI_PROVIDER_NOT_FOUND, VALIDATION_FAILED at the scorer
 */
export async function checkScorers(
  context: CheckContext,
  scorers: readonly Scorer[],
  agent: Pick<AgentRow, 'output_schema'>,
): Promise<ScorerReferences> {
  const references: ScorerReferences = { tools: [], deciders: new Map(), ai_provider_ids: [], inherits_route: false }
  for (const [index, scorer] of scorers.entries()) {
    const path = `scorers[${index}]`
    if (scorer.type === 'output_schema') await checkSchema(context, scorer, agent, path)
    else if (scorer.type === 'embedding_similarity') checkEmbedder(context, path)
    else if (scorer.type === 'llm_judge') await checkJudge(context, scorer, references, path)
    else if (scorer.type === 'tool') references.tools.push(await checkTool(context, scorer, path))
    else if (scorer.type === 'decider') references.deciders.set(scorer.name, await checkDecider(context, scorer, path))
  }
  return references
}

async function checkSchema(
  { services, project }: CheckContext,
  { schema }: ScorerOf<'output_schema'>,
  { output_schema }: Pick<AgentRow, 'output_schema'>,
  path: string,
): Promise<void> {
  if (!output_schema) raiseInvalidValue(path, 'requires an agent with an output_schema')
  if (schema === undefined) return
  try {
    await checkOutputSchema(services, project, schema)
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'INVALID_OUTPUT_SCHEMA') throw error
    raiseInvalidValue(`${path}.schema`, error.message.replace(/^output_schema: /, ''))
  }
}

function checkEmbedder({ services }: CheckContext, path: string): void {
  if (!embedderOf(services).configured) raiseInvalidValue(path, 'requires an embedding model, but none is configured')
}

async function checkJudge(
  { tx, project }: CheckContext,
  { ai_provider_id, model }: ScorerOf<'llm_judge'>,
  references: ScorerReferences,
  path: string,
): Promise<void> {
  if (ai_provider_id !== undefined) {
    await requireAll(tx, aiProviderKind, project, [ai_provider_id])
    if (!references.ai_provider_ids.includes(ai_provider_id)) references.ai_provider_ids.push(ai_provider_id)
    return
  }
  if (model !== undefined) raiseInvalidValue(`${path}.model`, 'is allowed only with ai_provider_id')
  if ((await lockDefaultRoute(tx, project)) === null)
    raiseInvalidValue(path, 'requires ai_provider_id because the project has no default model route')
  references.inherits_route = true
}

async function checkTool(
  { tx, project }: CheckContext,
  { tool_id, action, preset_parameters = {} }: ScorerOf<'tool'>,
  path: string,
): Promise<ToolRow> {
  const tool = await toolKind.reference(tx, tool_id, project)
  if (!tool) return raise('TOOL_NOT_FOUND', { meta: { id: tool_id } })
  if (tool.type === 'client') raiseInvalidValue(`${path}.tool_id`, 'must not be a client tool')
  const hasActions = MULTI_ACTION_TYPES.includes(tool.type)
  if (hasActions && action === undefined) raiseInvalidValue(`${path}.action`, `is required for ${tool.type} tools`)
  if (!hasActions && action !== undefined) raiseInvalidValue(`${path}.action`, `is not allowed for ${tool.type} tools`)
  const reserved = PLATFORM_ARGUMENTS.find(name => Object.hasOwn(preset_parameters, name))
  if (reserved) raiseInvalidValue(`${path}.preset_parameters.${reserved}`, 'is set by the platform')
  const preset = PLATFORM_ARGUMENTS.find(name => Object.hasOwn(tool.preset_parameters ?? {}, name))
  if (preset)
    raiseInvalidValue(`${path}.tool_id`, `must not be a tool with the preset ${preset}, which is set by scorers`)
  return tool
}

async function checkDecider(
  { tx, project }: CheckContext,
  { decider_id }: ScorerOf<'decider'>,
  path: string,
): Promise<DeciderRow> {
  const decider = await deciderKind.reference(tx, decider_id, project)
  if (!decider) return raiseInvalidValue(`${path}.decider_id`, 'does not exist in this project')
  try {
    await resolveBackend(tx, project, decider)
    return decider
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    return raiseInvalidValue(`${path}.decider_id`, `cannot be used: ${error.message}`)
  }
}

/**
 * Checks the agent and the scorers of an eval. The caller must have permission to use the agent, tools and deciders.
 * @throws AGENT_NOT_FOUND, TOOL_NOT_FOUND, AI_PROVIDER_NOT_FOUND, VALIDATION_FAILED, FORBIDDEN
 */
export async function checkEval(
  context: CheckContext & Pick<Context, 'allow'>,
  { agent_id, scorers }: { agent_id: string; scorers: readonly Scorer[] },
): Promise<Pick<ScorerReferences, 'ai_provider_ids' | 'inherits_route'>> {
  const { tx, project, allow } = context
  const agent = isIdOf(agentKind, agent_id) ? await agentKind.reference(tx, agent_id, project) : null
  if (!agent) return raise('AGENT_NOT_FOUND', { meta: { id: agent_id } })
  const { tools, deciders, ai_provider_ids, inherits_route } = await checkScorers(context, scorers, agent)
  allow('agents:CreateAgentGeneration', { kind: agentKind, row: agent })
  for (const row of tools) allow('tools:CallTool', { kind: toolKind, row })
  for (const row of deciders.values()) allow('deciders:CreateDecision', { kind: deciderKind, row })
  return { ai_provider_ids, inherits_route }
}

/**
 * Requires a dataset that the caller may read, because results and groups contain its items and scorers send them on.
 * @throws VALIDATION_FAILED if it does not exist in the project, FORBIDDEN
 */
export async function requireDataset(
  { tx, allow, project }: Pick<Context, 'tx' | 'allow'> & { project: string },
  id: string,
): Promise<void> {
  const row = await datasetKind.reference(tx, id, project)
  if (!row) return raiseInvalidValue('dataset_id', 'does not exist in this project')
  allow('evaluations:GetDataset', { kind: datasetKind, row })
}
