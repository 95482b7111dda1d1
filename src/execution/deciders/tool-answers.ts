import { z } from 'zod'
import { AppError, raise } from '../../core/api/errors.ts'
import { parse, wirePath } from '../../core/api/validate.ts'
import { parseJson } from '../../core/http/body.ts'
import type { DecisionAnswer, Question } from './questions.ts'

/** What a tool answers. */

const share = z.number().min(0).max(1)

/** Refuses entries of a list that say something of one value twice. */
const once = <T extends { value: unknown }>(entries: z.ZodType<T[]>) =>
  entries.superRefine((list, context) => {
    for (const [index, { value }] of list.entries())
      if (list.findIndex(other => other.value === value) < index)
        context.addIssue({ code: 'custom', path: [index, 'value'], message: 'is there twice' })
  })

/** The answer to a question as a tool gives it; what the record says beyond that is added. */
function answerOf(question: Question): z.ZodType<DecisionAnswer> {
  const given = { type: z.literal(question.type).optional(), name: z.literal(question.name) }
  const { type, name } = question
  if (type === 'predicate')
    return z
      .strictObject({ ...given, probability: share })
      .transform(({ probability }) => ({ type, name, probability }))
  if (type === 'choice') {
    const value = z.enum(question.choices.map(choice => choice.value))
    const probabilities = once(z.array(z.strictObject({ value, probability: share }))).optional()
    return z
      .strictObject({ ...given, choice: value, probabilities, confidence: share.optional() })
      .transform(({ type: _type, name: _name, ...answer }) => ({ type, name, ...answer }))
  }
  const last = question.levels.length - 1
  const level = z.strictObject({ value: z.int().min(0).max(last), label: z.unknown().optional(), probability: share })
  return z
    .strictObject({
      ...given,
      score: z.number().min(0).max(last),
      probabilities: once(z.array(level)).optional(),
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

/** What a tool answered as an object; a text is JSON of one. */
function objectOf(output: unknown): Record<string, unknown> {
  let value = output
  try {
    if (typeof output === 'string') value = parseJson(output)
  } catch {
    return refuse('', 'is a text that is no JSON')
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return refuse('', 'must be an object')
  return value as Record<string, unknown>
}

/**
 * The answers of a tool, in the order of the questions. Texts of the tool are in none of them.
 * @throws DECISION_ANSWER_INVALID naming the path of what breaks the contract
 */
export function toolAnswers(questions: readonly Question[], output: unknown): DecisionAnswer[] {
  const { answers } = objectOf(output)
  if (!Array.isArray(answers)) return refuse('answers', answers === undefined ? 'is required' : 'must be an array')
  if (answers.length > questions.length) return refuse('answers', 'has more entries than there are questions')
  const byName = new Map<string, { given: unknown; path: string }>()
  for (const [index, given] of answers.entries()) {
    const path = wirePath(['answers', index])
    const name = typeof given === 'object' && given !== null ? given.name : undefined
    if (!questions.some(question => question.name === name)) return refuse(`${path}.name`, 'names no question')
    if (byName.has(name)) return refuse(`${path}.name`, 'is there twice')
    byName.set(name, { given, path })
  }
  return questions.map(question => {
    const found = byName.get(question.name)
    if (!found) return refuse('answers', `has no answer to ${question.name}`)
    return checked(question, found.given, found.path)
  })
}

function checked(question: Question, given: unknown, path: string): DecisionAnswer {
  try {
    return parse(answerOf(question), given, path)
  } catch (error) {
    if (!(error instanceof AppError) || error.code !== 'VALIDATION_FAILED') throw error
    return raise('DECISION_ANSWER_INVALID', { message: error.message, meta: error.meta })
  }
}
