import { isDeepStrictEqual } from 'node:util'
import { kinds } from '#core/api/kind.ts'
import type { Context } from '#core/api/operation.ts'
import { AppError, type Problem, raise } from '#core/base/errors.ts'
import type { Queryable } from '#core/db/sql.ts'
import { searchLanguageProblem } from '#identity/projects/search-language.ts'
import { effectiveSettings } from '../index/chunks/chunk-settings.ts'
import { CHUNK_STRATEGIES, CHUNK_UNITS } from '../index/chunks/model.ts'
import { findTool } from '../tools.ts'
import { FILE_DELIVERY, type IngestionRulePatch, type IngestionRuleRow, NATIVE_EXTRACTION } from './model.ts'

const GLOB = /^[a-z0-9*.+-]+\/[a-z0-9*.+-]+$/
/** Keys of a tool's input that the platform sets. */
const RESERVED_KEYS = ['file', 'callback']
/** Tool types with several actions; `soat` is an alias of `platform`. */
const ACTION_TYPES = ['mcp', 'platform', 'soat']

type CheckContext = { db: Queryable; project_id: string; allow: Context['allow'] }

/**
 * Validates the complete rule that results from a write. The tool is queried only if the write changes tool or action,
 * so that a rule whose tool was deleted can be updated. A change of tool, action or preset parameters requires
 * permission to call the tool.
 * @param stored null for a new rule
 * @throws INGESTION_RULE_VALIDATION_FAILED with `meta.problems`, TOOL_NOT_FOUND, FORBIDDEN
 */
export async function checkIngestionRule(
  { db, project_id, allow }: CheckContext,
  rule: IngestionRulePatch,
  stored: IngestionRuleRow | null,
): Promise<void> {
  checkRuleFields(rule)
  if (rule.search_language !== stored?.search_language) {
    const problem = await searchLanguageProblem(db, rule.search_language)
    if (problem) refuse([problem])
  }
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

/** Refuses a rule without its converter. @throws INGESTION_RULE_VALIDATION_FAILED */
export const checkRuleFields = (rule: IngestionRulePatch): void => refuse(ruleProblems(rule))

function refuse(problems: Problem[]): void {
  if (problems.length === 0) return
  const [{ path, message }] = problems
  raise('INGESTION_RULE_VALIDATION_FAILED', { message: `${path}: ${message}`, meta: { problems } })
}

const invalid = (path: string, message: string): Problem => ({ code: 'INVALID_VALUE', path, message })

/** Returns the problems of a rule that can be found without its converter. */
function ruleProblems(rule: IngestionRulePatch): Problem[] {
  const problems: Problem[] = []
  const { content_type_glob, tool_id, agent_id, preset_parameters, action, file_delivery } = rule
  if (content_type_glob !== undefined && !GLOB.test(content_type_glob))
    problems.push(invalid('content_type_glob', 'must be type/subtype, each consisting of letters, digits and * . + -'))
  if ((tool_id == null) === (agent_id == null))
    problems.push(invalid('tool_id', 'must be set if agent_id is not, and cannot be combined with it'))
  for (const key of RESERVED_KEYS)
    if (preset_parameters && Object.hasOwn(preset_parameters, key))
      problems.push(invalid(`preset_parameters.${key}`, 'is reserved: the platform sets it'))
  if (agent_id != null) {
    if (preset_parameters != null) problems.push(invalid('preset_parameters', 'is allowed only with tool_id'))
    if (action != null) problems.push(invalid('action', 'is allowed only with tool_id'))
    if (file_delivery === 'download_url') problems.push(invalid('file_delivery', 'must be base64 if agent_id is set'))
  }
  const enums = { native_extraction: NATIVE_EXTRACTION, file_delivery: FILE_DELIVERY }
  for (const [field, values] of Object.entries(enums)) {
    const value = rule[field as keyof typeof enums]
    if (value !== undefined && !(values as readonly string[]).includes(value))
      problems.push(invalid(field, `must be one of ${values.join(', ')}`))
  }
  return [...problems, ...chunkProblems(rule)]
}

/** Returns problems of chunk settings. Size and overlap are validated as for `size` if no strategy uses them. */
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
    problems.push(invalid('chunk_strategy', `must be one of ${CHUNK_STRATEGIES.join(', ')}`))
  if (chunk_unit !== unit) problems.push(invalid('chunk_unit', `must be one of ${CHUNK_UNITS.join(', ')}`))
  const isIntegerIn = (value: number | null, min: number, max: number) =>
    value === null || (Number.isInteger(value) && value >= min && value <= max)
  if (!isIntegerIn(chunk_size, 1, 100_000)) problems.push(invalid('chunk_size', 'must be an integer from 1 to 100000'))
  if (!isIntegerIn(chunk_overlap, 0, 99_999))
    problems.push(invalid('chunk_overlap', 'must be an integer from 0 to 99999'))
  if (problems.length > 0) return problems
  try {
    const checked = strategy === 'auto' ? strategy : 'size'
    effectiveSettings({ chunk_strategy: checked, chunk_unit: unit, chunk_size, chunk_overlap })
  } catch (error) {
    if (error instanceof AppError && error.code === 'VALIDATION_FAILED') return error.meta?.problems as Problem[]
    throw error
  }
  return []
}

function toolProblems(type: string, action: string | null): Problem[] {
  if (type === 'client') return [invalid('tool_id', 'must not be a client tool, which the platform cannot call')]
  if (ACTION_TYPES.includes(type) && action === null) return [invalid('action', `is required for ${type} tools`)]
  return []
}
