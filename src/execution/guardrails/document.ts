import { raise, raiseInvalid } from '../../core/api/errors.ts'
import { expressionProblem, isObject, operationOf } from '../../core/expressions/evaluate.ts'
import { type RootRead, rootReadsOf, unknownOperators } from '../../core/expressions/references.ts'
import { CLASSES, type Class, type GuardrailDocument, type GuardrailRow } from './model.ts'
import { RUNTIME_KEYS } from './runtime.ts'

const NAMESPACES = ['args', 'context', 'runtime']

export const isClass = (value: unknown): value is Class => CLASSES.includes(value as Class)

/** Whether a path is of `context` or `runtime`, whose values may be missing without the author's doing. */
export const isAmbient = (path: string): boolean => /^(context|runtime)(\.|$)/.test(path)

export const isContext = (path: string): boolean => /^context(\.|$)/.test(path)

/**
 * Validates the expressions of a document. Raises VALIDATION_FAILED with `meta { problems, field, var }`.
 * @param at path of the document in the body
 */
export function checkGuardrailDocument(document: GuardrailDocument, at = 'document'): void {
  if (!isClass(document.class) && !operationOf(document.class)) {
    const [key] = isObject(document.class) ? unknownOperators(document.class) : []
    refuse(`${at}.class`, key === undefined ? 'must be A, B, C or D, or an expression' : `${key} is no operator`)
  }
  for (const field of ['class', 'guard'] as const) {
    const expression = document[field]
    if (expression !== undefined) checkExpression(expression, `${at}.${field}`)
  }
  const { guard } = document
  if (guard !== undefined && typeof guard !== 'boolean' && !operationOf(guard))
    refuse(`${at}.guard`, 'must be an expression')
}

function checkExpression(expression: unknown, field: string): void {
  const unusable = expressionProblem(expression)
  if (unusable) raiseInvalid({ code: 'TOO_BIG', path: field, message: unusable })
  const [unknown] = unknownOperators(expression)
  if (unknown !== undefined) refuse(field, `${unknown} is no operator`)
  for (const { path } of rootReadsOf(expression)) {
    if (path === null) refuse(field, 'reads a path that is computed; write it out')
    const [namespace] = path.split('.')
    if (!NAMESPACES.includes(namespace))
      refuse(field, `${path || 'the root'} is none of args, context and runtime`, path)
    if (namespace === 'runtime' && !RUNTIME_KEYS.includes(path)) refuse(field, `${path} is no value of runtime`, path)
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

/** A guardrail as calls are judged by it, with what its expressions read found out once. */
export type GuardrailRule = {
  guardrail_id: string
  project_id: string
  name: string
  version: number | null
  document: GuardrailDocument
  context_tool_id: string | null
  context_mode: 'merge' | 'replace'
  reads: { class: readonly RootRead[]; guard: readonly RootRead[] }
  /** Every path that it reads, once. */
  paths: readonly string[]
  readsContext: boolean
  /** The record, for its events; null for a guardrail that is gone. */
  row: GuardrailRow | null
}

export function ruleOf(row: GuardrailRow): GuardrailRule {
  return { ...compiled(row.document as GuardrailDocument), ...identity(row), row }
}

/** The same of a guardrail that tries another document. */
export const trialRule = (row: GuardrailRow, document: GuardrailDocument): GuardrailRule => ({
  ...compiled(document),
  ...identity(row),
  version: null,
  row,
})

/** A guardrail that is attached and gone: a person is asked. */
export const missingGuardrailRule = (guardrail_id: string, project_id: string): GuardrailRule => ({
  ...compiled({ class: 'C' }),
  guardrail_id,
  project_id,
  name: guardrail_id,
  version: null,
  context_tool_id: null,
  context_mode: 'merge',
  row: null,
})

const identity = ({ id, project_id, name, version, context_tool_id, context_mode }: GuardrailRow) => ({
  guardrail_id: id,
  project_id,
  name,
  version,
  context_tool_id,
  context_mode: context_mode ?? ('merge' as const),
})

function compiled(document: GuardrailDocument) {
  const reads = { class: rootReadsOf(document.class), guard: rootReadsOf(document.guard) }
  const paths = [...new Set([...reads.class, ...reads.guard].flatMap(({ path }) => path ?? []))]
  return { document, reads, paths, readsContext: paths.some(isContext) }
}

/** Whether a rule may send a call to a person. */
export const mayRequireApproval = ({ document }: GuardrailRule): boolean =>
  document.class === 'C' || !isClass(document.class) || (document.class === 'B' && document.escalate === true)
