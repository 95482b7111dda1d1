import { z } from 'zod'

/** Questions and their answers. */

const name = z
  .string()
  .regex(/^[A-Za-z_][A-Za-z0-9_]{0,63}$/)
  .describe('Name of the question and its answer, unique in the set. Letters, digits and underscores.')
  .meta({ example: 'is_angry' })
const instructions = z.string().min(1).max(4000).describe('Question to answer')
const type = <const T extends string>(value: T, describe: string) => z.literal(value).describe(describe)
const text = (describe: string, max = 1000) => z.string().min(1).max(max).describe(describe)

const Predicate = z.strictObject({
  type: type('predicate', 'Yes-or-no question'),
  name,
  instructions,
})

/** Refuses lists with duplicate values. */
export const uniqueValues = <T extends { value: unknown }>(entries: z.ZodType<T[]>) =>
  entries.superRefine((list, context) => {
    for (const [index, { value }] of list.entries())
      if (list.findIndex(other => other.value === value) < index)
        context.addIssue({ code: 'custom', path: [index, 'value'], message: 'is a duplicate' })
  })

const Choice = z.strictObject({
  type: type('choice', 'Choice among options'),
  name,
  instructions,
  choices: uniqueValues(
    z
      .array(
        z.strictObject({ value: text('Value of the option, unique', 255), description: text('Meaning of the option') }),
      )
      .min(2)
      .max(20),
  ).describe('Options'),
})

const Score = z.strictObject({
  type: type('score', 'Rating on a scale'),
  name,
  instructions,
  levels: z
    .array(z.strictObject({ label: text('Name of the level', 255), description: text('Meaning of the level') }))
    .min(2)
    .max(20)
    .describe('Levels of the scale, starting with the lowest, whose number is 0'),
})

export const Question = z.discriminatedUnion('type', [Predicate, Choice, Score]).meta({ id: 'DeciderQuestion' })
export type Question = z.output<typeof Question>

export const Questions = z
  .array(Question)
  .min(1)
  .max(20)
  .superRefine((questions, context) => {
    for (const [index, question] of questions.entries())
      if (questions.findIndex(other => other.name === question.name) < index)
        context.addIssue({ code: 'custom', path: [index, 'name'], message: 'is a duplicate' })
  })
  .describe('Questions of the set. 1 to 20.')

const share = z.number().min(0).max(1).describe('Probability')
const nameField = { name: z.string() }
const confidence = share.optional().describe('Confidence of the tool')

export const DecisionAnswer = z
  .discriminatedUnion('type', [
    z.object({ type: z.literal('predicate'), ...nameField, probability: share }),
    z.object({
      type: z.literal('choice'),
      ...nameField,
      choice: z.string().describe('Chosen option'),
      probabilities: z
        .array(z.object({ value: z.string(), probability: share }))
        .optional()
        .describe('Probability of every option'),
      confidence,
    }),
    z.object({
      type: z.literal('score'),
      ...nameField,
      score: z.number(),
      probabilities: z
        .array(z.object({ value: z.int(), label: z.string(), probability: share }))
        .optional()
        .describe('Probability of every option'),
      confidence,
    }),
  ])
  .meta({ id: 'DecisionAnswer' })
export type DecisionAnswer = z.output<typeof DecisionAnswer>
