import { isDeepStrictEqual } from 'node:util'
import { AppError, type Problem, raise } from '../../core/api/errors.ts'
import { kinds } from '../../core/api/kind.ts'
import type { Context } from '../../core/api/operation.ts'
import type { Queryable } from '../../core/db/sql.ts'
import { CHUNK_STRATEGIES, CHUNK_UNITS } from '../chunks/model.ts'
import { effectiveSettings } from '../chunks/settings.ts'
import { findTool } from '../tools.ts'
import { FILE_DELIVERY, type IngestionRulePatch, type IngestionRuleRow, NATIVE_EXTRACTION } from './model.ts'

const GLOB = /^[a-z0-9*.+-]+\/[a-z0-9*.+-]+$/
/** Keys of a tool's input that the platform fills in. */
const RESERVED_KEYS = ['file', 'callback']
/** Tools whose calls name one of several operations; `soat` is another name of `platform`. */
const BY_ACTION = ['mcp', 'platform', 'soat']

type Checking = { db: Queryable; project_id: string; allow: Context['allow'] }

/**
 * Validates the rule that a write would leave, as a whole. The tool is looked up when the write names it or another
 * action of it, so that a rule whose tool is lost can be changed. Who has it called, or with other presets, must be
 * allowed to call it.
 * @param stored null for a rule that does not exist yet
 * @throws INGESTION_RULE_VALIDATION_FAILED with `meta.problems`, TOOL_NOT_FOUND, FORBIDDEN
 */
export async function checkIngestionRule(
  { db, project_id, allow }: Checking,
  rule: IngestionRulePatch,
  stored: IngestionRuleRow | null,
): Promise<void> {
  refuse(problemsOf(rule))
  const { tool_id, action = null, preset_parameters = null } = rule
  if (tool_id == null) return
  const same = tool_id === stored?.tool_id && action === stored.action
  if (!same || !isDeepStrictEqual(preset_parameters, stored.preset_parameters))
    allow('tools:CallTool', { kind: kinds.get('tool'), row: { id: tool_id, project_id } })
  if (same) return
  const tool = await findTool(db, project_id, tool_id)
  if (!tool) return raise('TOOL_NOT_FOUND', { meta: { id: tool_id } })
  refuse(toolProblems(tool.type, action))
}

function refuse(problems: Problem[]): void {
  if (problems.length === 0) return
  const [{ path, message }] = problems
  raise('INGESTION_RULE_VALIDATION_FAILED', { message: `${path}: ${message}`, meta: { problems } })
}

const wrong = (path: string, message: string): Problem => ({ code: 'INVALID_VALUE', path, message })

/** What is wrong with a rule as far as that is known without its converter. */
function problemsOf(rule: IngestionRulePatch): Problem[] {
  const problems: Problem[] = []
  const { content_type_glob, tool_id, agent_id, preset_parameters, action, file_delivery } = rule
  if (content_type_glob !== undefined && !GLOB.test(content_type_glob))
    problems.push(wrong('content_type_glob', 'must be type/subtype, each half of letters, digits and * . + -'))
  if ((tool_id == null) === (agent_id == null))
    problems.push(wrong('tool_id', 'exactly one of tool_id and agent_id must be set'))
  for (const key of RESERVED_KEYS)
    if (preset_parameters && Object.hasOwn(preset_parameters, key))
      problems.push(wrong(`preset_parameters.${key}`, 'is a key that the platform fills in'))
  if (agent_id != null) {
    if (preset_parameters != null) problems.push(wrong('preset_parameters', 'is for tools only'))
    if (action != null) problems.push(wrong('action', 'is for tools only'))
    if (file_delivery === 'download_url') problems.push(wrong('file_delivery', 'an agent is given the bytes'))
  }
  const closed = { native_extraction: NATIVE_EXTRACTION, file_delivery: FILE_DELIVERY }
  for (const [field, values] of Object.entries(closed)) {
    const value = rule[field as keyof typeof closed]
    if (value !== undefined && !(values as readonly string[]).includes(value))
      problems.push(wrong(field, `must be one of ${values.join(', ')}`))
  }
  return [...problems, ...chunkProblems(rule)]
}

/** The chunk settings are validated as the text of a file would be cut with them, whether or not they name a strategy. */
function chunkProblems({
  chunk_strategy = null,
  chunk_unit = null,
  chunk_size = null,
  chunk_overlap = null,
}: IngestionRulePatch): Problem[] {
  const problems: Problem[] = []
  const strategy = CHUNK_STRATEGIES.find(value => value === chunk_strategy) ?? null
  const unit = CHUNK_UNITS.find(value => value === chunk_unit) ?? null
  if (chunk_strategy !== strategy)
    problems.push(wrong('chunk_strategy', `must be one of ${CHUNK_STRATEGIES.join(', ')}`))
  if (chunk_unit !== unit) problems.push(wrong('chunk_unit', `must be one of ${CHUNK_UNITS.join(', ')}`))
  const whole = (value: number | null, min: number, max: number) =>
    value === null || (Number.isInteger(value) && value >= min && value <= max)
  if (!whole(chunk_size, 1, 100_000)) problems.push(wrong('chunk_size', 'must be an integer from 1 to 100000'))
  if (!whole(chunk_overlap, 0, 99_999)) problems.push(wrong('chunk_overlap', 'must be an integer from 0 to 99999'))
  if (problems.length > 0) return problems
  try {
    const cut = strategy === 'auto' ? strategy : 'size'
    effectiveSettings({ chunk_strategy: cut, chunk_unit: unit, chunk_size, chunk_overlap })
  } catch (error) {
    if (error instanceof AppError && error.code === 'VALIDATION_FAILED') return error.meta?.problems as Problem[]
    throw error
  }
  return []
}

function toolProblems(type: string, action: string | null): Problem[] {
  if (type === 'client') return [wrong('tool_id', 'a client tool cannot be called by the platform')]
  if (BY_ACTION.includes(type) && action === null) return [wrong('action', `is required for ${type} tools`)]
  return []
}
