import { z } from 'zod'
import { NAME } from './expressions.ts'

/** Schema of templates, without the rules of expressions and resource types. */

export const MAX_RESOURCES = 500
const MAX_PARAMETERS = 200

const name = z.string().regex(NAME, 'must be a letter followed by at most 127 letters, digits or underscores')
const anything = z.unknown()

const ParameterShape = z.strictObject({
  type: z.literal('string').optional(),
  default: z.string().optional(),
  description: z.string().optional(),
  no_echo: z.boolean().optional(),
  use_previous_value: z.boolean().optional(),
})
export type Parameter = z.output<typeof ParameterShape>

const ResourceShape = z.strictObject({
  type: z.string(),
  properties: z.record(z.string(), anything).optional(),
  depends_on: z.union([z.string(), z.array(z.string()).max(MAX_RESOURCES)]).optional(),
  deletion_policy: z.enum(['delete', 'retain']).optional(),
  metadata: anything.optional(),
  condition: z.strictObject({ param_equals: z.tuple([name, z.string()]) }).optional(),
  ignore_fields: z.array(z.string()).max(100).optional(),
  prevent_destroy: z.boolean().optional(),
})
export type ResourceDeclaration = z.output<typeof ResourceShape>

export const TemplateShape = z.strictObject({
  resources: z
    .record(name, ResourceShape)
    .refine(all => Object.keys(all).length <= MAX_RESOURCES, `must have at most ${MAX_RESOURCES} resources`),
  parameters: z
    .record(name, ParameterShape)
    .refine(all => Object.keys(all).length <= MAX_PARAMETERS, `must have at most ${MAX_PARAMETERS} parameters`)
    .optional(),
  outputs: z.record(z.string().min(1).max(128), anything).optional(),
  metadata: anything.optional(),
  moved: z.record(name, name).optional(),
})
export type TemplateShape = z.output<typeof TemplateShape>
