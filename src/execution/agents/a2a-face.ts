import { z } from 'zod'

const text = (max: number) => z.string().trim().min(1).max(max)

const Skill = z
  .strictObject({
    id: text(128).describe('ID of the skill within the card'),
    name: text(255).describe('Display name'),
    description: z.string().max(2000).describe('What the skill does'),
    tags: z.array(text(64)).max(20).optional().describe('Keywords'),
    examples: z.array(text(1000)).max(10).optional().describe('Example messages'),
  })
  .meta({ id: 'A2aSkill' })

/** How an agent or an orchestration is served to clients of the A2A protocol. */
export const A2aFace = z
  .strictObject({
    enabled: z.boolean().describe('Whether `/a2a/{id}` serves it; otherwise 404'),
    public_card: z.boolean().optional().describe('Whether its card is readable without a credential. Default false.'),
    description: z.string().max(2000).nullish().describe('Description in the card. Default: its description.'),
    skills: z
      .array(Skill)
      .max(50)
      .refine(skills => new Set(skills.map(({ id }) => id)).size === skills.length, 'must have each id only once')
      .optional()
      .describe('Skills in the card, at most 50'),
  })
  .meta({ id: 'A2aFace' })
export type A2aFace = z.output<typeof A2aFace>
