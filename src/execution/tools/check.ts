import { raise } from '../../core/api/errors.ts'
import { secretKind } from '../../identity/secrets/model.ts'
import { checkTokens, tokenIds } from '../../identity/secrets/resolve.ts'
import { checkDefinition, type DefinitionCheck } from './check-definition.ts'
import { checkPipeline } from './check-pipeline.ts'
import type { ToolDefinition, ToolRow } from './model.ts'
import { type Senders, secretTextsOf, sendersOf } from './tokens.ts'

/**
 * Validates a definition as a write would leave it. Naming a secret, and changing what is sent with one that was named
 * before, needs the right to use it: who may write a tool may not thereby send any secret anywhere.
 * @param given the fields of the body: secrets are looked up when it holds some, so that a tool whose secret was deleted
 *   can be changed otherwise
 * @returns the ids of the secrets that the definition names
 * @throws VALIDATION_FAILED, INVALID_TEMPLATE_TOKEN, INVALID_TOOL_CONTEXT_KEY, PIPELINE_INVALID_STEP, SECRET_NOT_FOUND,
 *   FORBIDDEN
 */
export async function checkTool(
  checking: DefinitionCheck,
  tool: ToolDefinition,
  given: Partial<ToolDefinition>,
  stored: ToolRow | null,
): Promise<string[]> {
  const { tx, allow, project_id } = checking
  await checkDefinition(checking, tool, '', stored)
  if (tool.pipeline) await checkPipeline(checking, tool.pipeline, stored?.pipeline ?? null)
  else if (tool.type === 'pipeline')
    raise('PIPELINE_INVALID_STEP', { message: 'pipeline: a pipeline tool needs steps' })
  const texts = secretTextsOf(tool)
  const secret_ids = tokenIds(texts)
  const linked = stored && sentBy(stored) === sentBy(tool) ? stored.secret_ids : []
  for (const id of secret_ids)
    if (!linked.includes(id)) allow('secrets:UseSecret', { kind: secretKind, row: { id, project_id } })
  if (given.execute !== undefined || given.mcp !== undefined || given.pipeline !== undefined)
    await checkTokens(tx, project_id, texts)
  return secret_ids
}

/** Everything that decides where secrets go, and in which form. */
const sentBy = (tool: Senders): string => JSON.stringify(sendersOf(tool).map(each => ({ ...each, timeout_ms: null })))
