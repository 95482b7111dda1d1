import { ExpressionError, evaluate, freshBudget } from './evaluate.ts'

/** Size limit of a mapping, and its errors. */
type MappingLimits = {
  /** Most bytes of JSON of all values together. */
  bytes: number
  tooLarge(): Error
  /** Creates the error thrown in place of an ExpressionError. */
  failed?(key: string, error: ExpressionError): Error
}

/**
 * Evaluates the expressions of a mapping. They share one budget, and evaluation stops as soon as the values are too
 * large.
 * @throws ExpressionError, or the errors of `failed` and `tooLarge`
 */
export function evaluateMapping(
  mapping: Record<string, unknown> | null | undefined,
  root: unknown,
  { bytes, tooLarge, failed }: MappingLimits,
): Record<string, unknown> {
  const spent = freshBudget()
  let remaining = bytes
  return Object.fromEntries(
    Object.entries(mapping ?? {}).map(([key, expression]) => {
      const value = evaluateKey(key, expression)
      remaining -= Buffer.byteLength(JSON.stringify(value))
      if (remaining < 0) throw tooLarge()
      return [key, value]
    }),
  )

  function evaluateKey(key: string, expression: unknown): unknown {
    try {
      return evaluate(expression, root, spent)
    } catch (error) {
      throw failed && error instanceof ExpressionError ? failed(key, error) : error
    }
  }
}
