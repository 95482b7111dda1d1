import { AppError } from '../../core/api/errors.ts'
import { ExpressionError, evaluate, nothingSpent } from '../../core/expressions/evaluate.ts'

/** The failure of an expression; what is wrong with it is in the definition, and not shown. */
export const expressionFailed = (error: unknown): unknown =>
  error instanceof ExpressionError ? new AppError('INTERNAL_ERROR', { cause: error }) : error

/**
 * Keys with what their expressions come to. They share one budget, and no more of them is evaluated than makes it too large.
 * @param room.most bytes of JSON that the values may have together
 * @throws ExpressionError; what `room.refusal` gives
 */
export function mapped(
  mapping: Record<string, unknown> | null | undefined,
  root: unknown,
  room: { most: number; refusal: () => AppError },
): Record<string, unknown> {
  const spent = nothingSpent()
  let left = room.most
  return Object.fromEntries(
    Object.entries(mapping ?? {}).map(([key, expression]) => {
      const value = evaluate(expression, root, spent)
      left -= Buffer.byteLength(JSON.stringify(value))
      if (left < 0) throw room.refusal()
      return [key, value]
    }),
  )
}
