import { z } from 'zod'
import { withoutPresets } from './actions.ts'
import type { ToolDefinition } from './model.ts'

/** What other projects are shown of a tool that is shared with them. */
export const ToolProjection = z
  .object({
    id: z.string(),
    name: z.string(),
    description: z.string().nullable(),
    parameters: z
      .record(z.string(), z.unknown())
      .nullable()
      .describe('JSON Schema of the input, without what presets fix'),
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
