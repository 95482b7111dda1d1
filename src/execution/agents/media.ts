import { z } from 'zod'

/** What a model gets of a file that it cannot take. */
const MEDIA_FALLBACKS = ['note', 'extract', 'describe', 'refuse'] as const

const MediaPattern = z
  .string()
  .max(127)
  .regex(/^[a-z]+\/(\*|[a-z0-9][a-z0-9.+-]*)$/, 'must be a media type such as image/png or audio/*')

/** Handling of images and files in the messages of an agent. */
export const MediaSettings = z
  .strictObject({
    accept: z
      .array(MediaPattern)
      .min(1)
      .max(32)
      .optional()
      .describe('Media types that messages may contain, such as `image/png` or `audio/*`. Default all.'),
    max_parts_per_turn: z
      .int()
      .min(1)
      .max(64)
      .optional()
      .describe(
        'Maximum number of images and files of a turn, newest first; the model gets notes of others. Default 8.',
      ),
    history_turns: z
      .int()
      .min(1)
      .max(100)
      .optional()
      .describe(
        'Number of newest turns, including the current one, whose images and files are sent; the model gets notes of older ones. Default 3.',
      ),
    fallback: z
      .enum(MEDIA_FALLBACKS)
      .optional()
      .describe(
        'What a model gets of a file that it cannot take: `note` — name, type and size; `extract` — the text of a PDF, and a note of others (default); `describe` — a text written once by describe_model_route_id; `refuse` — nothing, the message is refused',
      ),
    describe_model_route_id: z
      .string()
      .min(1)
      .max(255)
      .nullish()
      .describe('ID of the model route that describes images and files. Required for the fallback `describe`.'),
  })
  .refine(({ fallback, describe_model_route_id: route }) => fallback !== 'describe' || route != null, {
    path: ['describe_model_route_id'],
    message: 'is required for the fallback describe',
  })
  .meta({ id: 'AgentMedia' })
export type MediaSettings = z.output<typeof MediaSettings>

/** Media settings with their defaults. */
export type MediaRules = Required<Omit<MediaSettings, 'accept' | 'describe_model_route_id'>> & {
  accept: readonly string[] | null
  describe_model_route_id: string | null
}

/** Returns the media settings of an agent with their defaults. */
export const mediaRules = (media: MediaSettings | null): MediaRules => ({
  accept: media?.accept ?? null,
  max_parts_per_turn: media?.max_parts_per_turn ?? 8,
  history_turns: media?.history_turns ?? 3,
  fallback: media?.fallback ?? 'extract',
  describe_model_route_id: media?.describe_model_route_id ?? null,
})

/** Whether messages to an agent may contain files of a media type, given without parameters. */
export const acceptsType = ({ accept }: Pick<MediaRules, 'accept'>, type: string): boolean =>
  accept === null || accept.some(pattern => pattern === type || pattern === `${type.split('/', 1)[0]}/*`)
