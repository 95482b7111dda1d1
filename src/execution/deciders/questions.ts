import { z } from 'zod'

/** What can be asked, and how it is answered. */

const name = z
  .string()
  .regex(/^[A-Za-z_][A-Za-z0-9_]{0,63}$/)
  .describe('Name of the question and of its answer: letters, digits and underscores, unique in the set')
  .meta({ example: 'is_angry' })
const instructions = z.string().min(1).max(4000).describe('What is asked')
const type = <const T extends string>(value: T, describe: string) => z.literal(value).describe(describe)
const text = (describe: string, max = 1000) => z.string().min(1).max(max).describe(describe)

const Predicate = z.strictObject({
  type: type('predicate', 'Whether a condition holds'),
  name,
  instructions,
})

const Choice = z.strictObject({
  type: type('choice', 'Which of several options it is'),
  name,
  instructions,
  choices: z
    .array(z.strictObject({ value: text('The option, unique', 255), description: text('What the option means') }))
    .min(2)
    .max(20)
    .superRefine((choices, context) => {
      for (const [index, { value }] of choices.entries())
        if (choices.findIndex(other => other.value === value) < index)
          context.addIssue({ code: 'custom', path: [index, 'value'], message: 'is there twice' })
    })
    .describe('The options'),
})

const Score = z.strictObject({
  type: type('score', 'Where on a scale it is'),
  name,
  instructions,
  levels: z
    .array(z.strictObject({ label: text('Name of the level', 255), description: text('What the level means') }))
    .min(2)
    .max(20)
    .describe('The scale from its lowest level, whose number is 0'),
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
        context.addIssue({ code: 'custom', path: [index, 'name'], message: 'is there twice' })
  })
  .describe('What is asked, 1 to 20 questions')

const share = z.number().min(0).max(1).describe('Probability')
const named = { name: z.string() }
const confidence = share.optional().describe('How sure the tool is')

export const DecisionAnswer = z
  .discriminatedUnion('type', [
    z.object({ type: z.literal('predicate'), ...named, probability: share }),
    z.object({
      type: z.literal('choice'),
      ...named,
      choice: z.string().describe('The option chosen'),
      probabilities: z
        .array(z.object({ value: z.string(), probability: share }))
        .optional()
        .describe('Probability of every option'),
      confidence,
    }),
    z.object({
      type: z.literal('score'),
      ...named,
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
