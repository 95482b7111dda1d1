import { embedderOf } from '../../content/embeddings/embedder.ts'
import { AppError, raise, raiseInvalid } from '../../core/api/errors.ts'
import { isIdOf } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import { requireAll } from '../../core/api/references.ts'
import type { Tx } from '../../core/db/writer.ts'
import type { Services } from '../../core/process/services.ts'
import { type AgentRow, agentKind } from '../../execution/agents/model.ts'
import { checkOutputSchema } from '../../execution/agents/schema.ts'
import { resolveBackend } from '../../execution/deciders/backend.ts'
import { type DeciderRow, deciderKind } from '../../execution/deciders/model.ts'
import { aiProviderKind } from '../../execution/providers/model.ts'
import { type ToolRow, toolKind } from '../../execution/tools/model.ts'
import { lockDefaultRoute } from '../../identity/projects/default-model-route.ts'
import { datasetKind } from '../datasets/model.ts'
import type { Scorer, ScorerOf } from './scorers.ts'

/** What a tool is told of an item, which presets must leave alone. */
const RESERVED = ['input', 'output', 'object', 'expected', 'item']

/** Tools whose calls name one of several operations. */
const BY_ACTION = ['mcp', 'platform']

type Checking = { tx: Tx; services: Services; project: string }

/** What scorers name, as it was found. */
export type ScorerReferences = {
  tools: ToolRow[]
  deciders: Map<string, DeciderRow>
  ai_provider_ids: string[]
  inherits_route: boolean
}

const wrong = (path: string, message: string): never => raiseInvalid({ code: 'INVALID_VALUE', path, message })

/**
 * Checks scorers as they would judge an agent now, and holds what they name until the transaction ends.
 * @param agent as it answers: with its output schema
 * @throws TOOL_NOT_FOUND, AI_PROVIDER_NOT_FOUND, VALIDATION_FAILED at the scorer
 */
export async function checkScorers(
  checking: Checking,
  scorers: readonly Scorer[],
  agent: Pick<AgentRow, 'output_schema'>,
): Promise<ScorerReferences> {
  const named: ScorerReferences = { tools: [], deciders: new Map(), ai_provider_ids: [], inherits_route: false }
  for (const [index, scorer] of scorers.entries()) {
    const path = `scorers[${index}]`
    if (scorer.type === 'output_schema') await checkSchema(checking, scorer, agent, path)
    else if (scorer.type === 'embedding_similarity') checkEmbedder(checking, path)
    else if (scorer.type === 'llm_judge') await checkJudge(checking, scorer, named, path)
    else if (scorer.type === 'tool') named.tools.push(await checkTool(checking, scorer, path))
    else if (scorer.type === 'decider') named.deciders.set(scorer.name, await checkDecider(checking, scorer, path))
  }
  return named
}

async function checkSchema(
  { services, project }: Checking,
  { schema }: ScorerOf<'output_schema'>,
  { output_schema }: Pick<AgentRow, 'output_schema'>,
  path: string,
): Promise<void> {
  if (!output_schema) wrong(path, 'needs an agent with an output_schema')
  if (schema === undefined) return
  try {
    await checkOutputSchema(services, project, schema)
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'INVALID_OUTPUT_SCHEMA') throw error
    wrong(`${path}.schema`, error.message.replace(/^output_schema: /, ''))
  }
}

function checkEmbedder({ services }: Checking, path: string): void {
  if (!embedderOf(services).configured) wrong(path, 'needs an embedding model, which this deployment has none of')
}

async function checkJudge(
  { tx, project }: Checking,
  { ai_provider_id, model }: ScorerOf<'llm_judge'>,
  named: ScorerReferences,
  path: string,
): Promise<void> {
  if (ai_provider_id !== undefined) {
    await requireAll(tx, aiProviderKind, project, [ai_provider_id])
    if (!named.ai_provider_ids.includes(ai_provider_id)) named.ai_provider_ids.push(ai_provider_id)
    return
  }
  if (model !== undefined) wrong(`${path}.model`, 'needs an ai_provider_id; targets of a model route name their models')
  if ((await lockDefaultRoute(tx, project)) === null)
    wrong(path, 'needs an ai_provider_id, as the project has no default model route')
  named.inherits_route = true
}

async function checkTool(
  { tx, project }: Checking,
  { tool_id, action, preset_parameters = {} }: ScorerOf<'tool'>,
  path: string,
): Promise<ToolRow> {
  const tool = await toolKind.reference(tx, tool_id, project)
  if (!tool) return raise('TOOL_NOT_FOUND', { meta: { id: tool_id } })
  if (tool.type === 'client') wrong(`${path}.tool_id`, 'a client tool cannot be called by the platform')
  const named = BY_ACTION.includes(tool.type)
  if (named && action === undefined) wrong(`${path}.action`, `is required for ${tool.type} tools`)
  if (!named && action !== undefined) wrong(`${path}.action`, `a tool of type ${tool.type} has one operation`)
  const own = RESERVED.find(name => Object.hasOwn(preset_parameters, name))
  if (own) wrong(`${path}.preset_parameters.${own}`, 'is filled in by the platform')
  const pinned = RESERVED.find(name => Object.hasOwn(tool.preset_parameters ?? {}, name))
  if (pinned) wrong(`${path}.tool_id`, `the presets of the tool fix ${pinned}, which scorers fill in`)
  return tool
}

async function checkDecider(
  { tx, project }: Checking,
  { decider_id }: ScorerOf<'decider'>,
  path: string,
): Promise<DeciderRow> {
  const decider = await deciderKind.reference(tx, decider_id, project)
  if (!decider) return wrong(`${path}.decider_id`, 'names no decider of the project')
  try {
    await resolveBackend(tx, project, decider)
    return decider
  } catch (error) {
    if (!(error instanceof AppError)) throw error
    return wrong(`${path}.decider_id`, `the decider cannot be asked: ${error.message}`)
  }
}

/**
 * Checks what an eval names and what its scorers do. Whoever has an agent, a tool or a decider asked must be allowed to ask it.
 * @throws AGENT_NOT_FOUND, TOOL_NOT_FOUND, AI_PROVIDER_NOT_FOUND, VALIDATION_FAILED, FORBIDDEN
 */
export async function checkEval(
  context: Checking & Pick<Context, 'allow'>,
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
 * Raises VALIDATION_FAILED for a dataset that the project does not have, FORBIDDEN for one that the caller may not read:
 * results and groups show its items, and scorers send them on.
 */
export async function requireDataset(
  { tx, allow, project }: Pick<Context, 'tx' | 'allow'> & { project: string },
  id: string,
): Promise<void> {
  const row = await datasetKind.reference(tx, id, project)
  if (!row) return wrong('dataset_id', 'names no dataset of the project')
  allow('evaluations:GetDataset', { kind: datasetKind, row })
}
