import { z } from 'zod'
import { withoutPresets } from './actions.ts'
import type { ToolDefinition } from './model.ts'

/** Fields of a shared tool that other projects see. */
export const ToolProjection = z
  .object({
    id: z.string(),
    name: z.string(),
    description: z.string().nullable(),
    parameters: z
      .record(z.string(), z.unknown())
      .nullable()
      .describe('JSON Schema of the input, without preset arguments'),
  })
  .meta({ id: 'ToolProjection' })

export const projectionOf = ({
  id,
  name,
  description,
  parameters,
  preset_parameters,
}: Pick<ToolDefinition, 'name' | 'description' | 'parameters' | 'preset_parameters'> & { id: string }) => ({
  id,
  name,
  description,
  parameters: parameters && withoutPresets(parameters, preset_parameters),
})
