import { z } from 'zod'
import { parse, wirePath } from '#core/api/validate.ts'
import { AppError, raise } from '#core/base/errors.ts'
import { withDoubles } from '#core/base/exact-json.ts'
import { parseJson } from '#core/base/json-limits.ts'
import { type DecisionAnswer, type Question, uniqueValues } from './questions.ts'

/** Answers of a tool. */

const share = z.number().min(0).max(1)

/** Returns the schema of a tool's answer to a question; fields of the record that the tool omits are added. */
function answerSchema(question: Question): z.ZodType<DecisionAnswer> {
  const base = { type: z.literal(question.type).optional(), name: z.literal(question.name) }
  const { type, name } = question
  if (type === 'predicate')
    return z.strictObject({ ...base, probability: share }).transform(({ probability }) => ({ type, name, probability }))
  if (type === 'choice') {
    const value = z.enum(question.choices.map(choice => choice.value))
    const probabilities = uniqueValues(z.array(z.strictObject({ value, probability: share }))).optional()
    return z
      .strictObject({ ...base, choice: value, probabilities, confidence: share.optional() })
      .transform(({ type: _type, name: _name, ...answer }) => ({ type, name, ...answer }))
  }
  const last = question.levels.length - 1
  const level = z.strictObject({ value: z.int().min(0).max(last), label: z.unknown().optional(), probability: share })
  return z
    .strictObject({
      ...base,
      score: z.number().min(0).max(last),
      probabilities: uniqueValues(z.array(level)).optional(),
      confidence: share.optional(),
    })
    .transform(({ type: _type, name: _name, probabilities, ...answer }) => ({
      type,
      name,
      ...answer,
      ...(probabilities && {
        probabilities: probabilities.map(({ value, probability }) => ({
          value,
          label: question.levels[value].label,
          probability,
        })),
      }),
    }))
}

function refuse(path: string, message: string): never {
  return raise('DECISION_ANSWER_INVALID', {
    message: `${path === '' ? 'the answer' : path}: ${message}`,
    meta: { problems: [{ code: 'INVALID_VALUE', path, message }] },
  })
}

/** Returns the output of a tool as an object; a text is parsed as JSON. */
function parseOutput(output: unknown): Record<string, unknown> {
  let value = output
  try {
    if (typeof output === 'string') value = parseJson(output)
  } catch {
    return refuse('', 'is not valid JSON')
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return refuse('', 'must be an object')
  return withDoubles(value) as Record<string, unknown>
}

/**
 * Returns the answers of a tool in the order of the questions, without any text of the tool.
 * @throws DECISION_ANSWER_INVALID with the path of the violation
 */
export function toolAnswers(questions: readonly Question[], output: unknown): DecisionAnswer[] {
  const { answers } = parseOutput(output)
  if (!Array.isArray(answers)) return refuse('answers', answers === undefined ? 'is required' : 'must be an array')
  if (answers.length > questions.length) return refuse('answers', 'has more entries than there are questions')
  const byName = new Map<string, { value: unknown; path: string }>()
  for (const [index, value] of answers.entries()) {
    const path = wirePath(['answers', index])
    const name = typeof value === 'object' && value !== null ? value.name : undefined
    if (!questions.some(question => question.name === name))
      return refuse(`${path}.name`, 'is not the name of a question')
    if (byName.has(name)) return refuse(`${path}.name`, 'is a duplicate')
    byName.set(name, { value, path })
  }
  return questions.map(question => {
    const found = byName.get(question.name)
    if (!found) return refuse('answers', `has no answer to ${question.name}`)
    return parseAnswer(question, found.value, found.path)
  })
}

function parseAnswer(question: Question, value: unknown, path: string): DecisionAnswer {
  try {
    return parse(answerSchema(question), value, path)
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'VALIDATION_FAILED') throw error
    return raise('DECISION_ANSWER_INVALID', { message: error.message, meta: error.meta })
  }
}
