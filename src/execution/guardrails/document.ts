import { raise, raiseInvalid } from '#core/base/errors.ts'
import { isObject } from '#core/base/exact-json.ts'
import { expressionProblem, operationOf } from '#core/expressions/evaluate.ts'
import { type RootRead, rootReadsOf, unknownOperators } from '#core/expressions/references.ts'
import { CLASSES, type Class, type GuardrailDocument, type GuardrailRow } from './model.ts'
import { RUNTIME_KEYS } from './runtime.ts'

const NAMESPACES = ['args', 'context', 'runtime']

export const isClass = (value: unknown): value is Class => CLASSES.includes(value as Class)

/** Whether a path is in `context` or `runtime`, whose values may be missing regardless of the author. */
export const isAmbient = (path: string): boolean => /^(context|runtime)(\.|$)/.test(path)

export const isContext = (path: string): boolean => /^context(\.|$)/.test(path)

/**
 * Validates the expressions of a document.
 * @throws VALIDATION_FAILED with `meta { problems, field, var }`
 */
export function checkGuardrailDocument(document: GuardrailDocument): void {
  if (!isClass(document.class) && !operationOf(document.class)) {
    const [key] = isObject(document.class) ? unknownOperators(document.class) : []
    refuse(
      'document.class',
      key === undefined ? 'must be A, B, C or D, or an expression' : `contains the unknown operator ${key}`,
    )
  }
  for (const field of ['class', 'guard'] as const) {
    const expression = document[field]
    if (expression !== undefined) checkExpression(expression, `document.${field}`)
  }
  if (document.approver === 'end_user' && document.forbid_self_approval)
    refuse('document.forbid_self_approval', 'cannot be combined with the approver end_user, who started the turn')
  const { guard } = document
  if (guard !== undefined && typeof guard !== 'boolean' && !operationOf(guard))
    refuse('document.guard', 'must be an expression')
}

function checkExpression(expression: unknown, field: string): void {
  const problem = expressionProblem(expression)
  if (problem) raiseInvalid({ code: 'TOO_BIG', path: field, message: problem })
  const [unknown] = unknownOperators(expression)
  if (unknown !== undefined) refuse(field, `contains the unknown operator ${unknown}`)
  for (const { path } of rootReadsOf(expression)) {
    if (path === null) refuse(field, 'reads a computed path; paths must be literal')
    const [namespace] = path.split('.')
    if (!NAMESPACES.includes(namespace))
      refuse(field, `reads ${path || 'the root'}, which is not in args, context or runtime`, path)
    if (namespace === 'runtime' && !RUNTIME_KEYS.includes(path))
      refuse(field, `reads ${path}, which is not a runtime value`, path)
  }
}

function refuse(field: string, message: string, name?: string): never {
  return raise('VALIDATION_FAILED', {
    message: `${field}: ${message}`,
    meta: {
      problems: [{ code: 'INVALID_VALUE', path: field, message }],
      field,
      ...(name === undefined ? {} : { var: name }),
    },
  })
}

/** Guardrail prepared for evaluation, with its reads precomputed. */
export type GuardrailRule = {
  guardrail_id: string
  project_id: string
  name: string
  version: number | null
  document: GuardrailDocument
  context_tool_id: string | null
  context_mode: 'merge' | 'replace'
  reads: { class: readonly RootRead[]; guard: readonly RootRead[] }
  /** All paths that the rule reads, without duplicates. */
  paths: readonly string[]
  readsContext: boolean
  /** Record for events; null for a deleted guardrail. */
  row: GuardrailRow | null
}

export function ruleOf(row: GuardrailRow): GuardrailRule {
  return { ...compileDocument(row.document as GuardrailDocument), ...ruleIdentity(row), row }
}

/** Returns the rule of a guardrail with another document to try. */
export const trialRule = (row: GuardrailRow, document: GuardrailDocument): GuardrailRule => ({
  ...compileDocument(document),
  ...ruleIdentity(row),
  version: null,
  row,
})

/** Returns the rule for an attached guardrail that was deleted: it requires an approval. */
export const missingGuardrailRule = (guardrail_id: string, project_id: string): GuardrailRule => ({
  ...compileDocument({ class: 'C' }),
  guardrail_id,
  project_id,
  name: guardrail_id,
  version: null,
  context_tool_id: null,
  context_mode: 'merge',
  row: null,
})

const ruleIdentity = ({ id, project_id, name, version, context_tool_id, context_mode }: GuardrailRow) => ({
  guardrail_id: id,
  project_id,
  name,
  version,
  context_tool_id,
  context_mode: context_mode ?? ('merge' as const),
})

function compileDocument(document: GuardrailDocument) {
  const reads = { class: rootReadsOf(document.class), guard: rootReadsOf(document.guard) }
  const paths = [...new Set([...reads.class, ...reads.guard].flatMap(({ path }) => path ?? []))]
  return { document, reads, paths, readsContext: paths.some(isContext) }
}

/** Whether a rule may route a call to an approval. */
export const mayRequireApproval = ({ document }: GuardrailRule): boolean =>
  document.class === 'C' || !isClass(document.class) || (document.class === 'B' && document.escalate === true)
