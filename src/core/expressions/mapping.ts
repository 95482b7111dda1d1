import { ExpressionError, evaluate, freshBudget } from './evaluate.ts'

/** What a mapping may come to, and what refuses it. */
type Bounds = {
  /** Bytes of JSON that its values may have together. */
  bytes: number
  tooLarge(): Error
  /** In place of an ExpressionError. */
  failed?(key: string, error: ExpressionError): Error
}

/**
 * Keys with what their expressions come to. They share one budget, and no more of them is evaluated than makes it too large.
 * @throws ExpressionError, or what `failed` and `tooLarge` give
 */
export function evaluateMapping(
  mapping: Record<string, unknown> | null | undefined,
  root: unknown,
  { bytes, tooLarge, failed }: Bounds,
): Record<string, unknown> {
  const spent = freshBudget()
  let left = bytes
  return Object.fromEntries(
    Object.entries(mapping ?? {}).map(([key, expression]) => {
      const value = evaluatedFor(key, expression)
      left -= Buffer.byteLength(JSON.stringify(value))
      if (left < 0) throw tooLarge()
      return [key, value]
    }),
  )

  function evaluatedFor(key: string, expression: unknown): unknown {
    try {
      return evaluate(expression, root, spent)
    } catch (error) {
      throw failed && error instanceof ExpressionError ? failed(key, error) : error
    }
  }
}
