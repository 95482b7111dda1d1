import { z } from 'zod'

/** Requests and responses of A2A 1.0. Unknown fields are ignored. */

export const PROTOCOL_VERSION = '1.0'

export const TASK_STATES = [
  'TASK_STATE_SUBMITTED',
  'TASK_STATE_WORKING',
  'TASK_STATE_INPUT_REQUIRED',
  'TASK_STATE_COMPLETED',
  'TASK_STATE_FAILED',
  'TASK_STATE_CANCELED',
  'TASK_STATE_REJECTED',
] as const
type TaskState = (typeof TASK_STATES)[number]

/** Whether a task in the state does not change by itself. */
export const isResting = (state: TaskState): boolean =>
  state !== 'TASK_STATE_SUBMITTED' && state !== 'TASK_STATE_WORKING'

export const isTerminal = (state: TaskState): boolean => isResting(state) && state !== 'TASK_STATE_INPUT_REQUIRED'

const id = z.string().min(1).max(255)
/** Clients send an empty text for an absent ID. */
const optionalId = z
  .string()
  .max(255)
  .nullish()
  .transform(value => value || null)

const MAX_TEXT = 262_144
export const MAX_FILE_BYTES = 20 * 1024 * 1024
const MAX_RAW = Math.ceil(MAX_FILE_BYTES / 3) * 4

const Part = z
  .object({
    text: z.string().max(MAX_TEXT).optional(),
    raw: z.string().max(MAX_RAW).optional(),
    url: z.string().max(2048).optional(),
    data: z.unknown().optional(),
    filename: z.string().max(255).nullish(),
    mediaType: z.string().max(255).nullish(),
  })
  .refine(
    part => [part.text, part.raw, part.url, part.data].filter(value => value !== undefined).length === 1,
    'must have exactly one of text, raw, url and data',
  )
export type Part = z.output<typeof Part>

const Message = z.object({
  messageId: id,
  contextId: optionalId,
  taskId: optionalId,
  role: z.literal('ROLE_USER'),
  parts: z.array(Part).min(1).max(16),
})
export type Message = z.output<typeof Message>

const headerText = z
  .string()
  .max(4096)
  .regex(/^[\x20-\x7e]*$/, 'must be printable ASCII')

/** The address that is notified of the changes of a task. */
export const PushConfig = z.object({
  id: optionalId,
  url: z.string().min(1).max(2048),
  token: headerText.nullish(),
  authentication: z
    .object({
      scheme: z
        .string()
        .max(64)
        .regex(/^[!#$%&'*+.^_`|~0-9A-Za-z-]+$/, 'must be a scheme'),
      credentials: headerText.nullish(),
    })
    .nullish(),
})
export type PushConfig = z.output<typeof PushConfig>

export const SendMessageRequest = z.object({
  message: Message,
  configuration: z
    .object({ returnImmediately: z.boolean().nullish(), taskPushNotificationConfig: PushConfig.nullish() })
    .nullish(),
})
export type SendMessageRequest = z.output<typeof SendMessageRequest>

export const TaskRequest = z.object({ id })

/** Numbers and flags arrive as text in queries. */
const flag = z.union([z.boolean(), z.enum(['true', 'false']).transform(value => value === 'true')])

export const ListTasksRequest = z.object({
  contextId: optionalId,
  status: z
    .enum([...TASK_STATES, 'TASK_STATE_UNSPECIFIED', 'TASK_STATE_AUTH_REQUIRED'])
    .nullish()
    .transform(state => (state === 'TASK_STATE_UNSPECIFIED' ? null : (state ?? null))),
  pageSize: z.coerce.number().int().min(1).max(100).nullish(),
  pageToken: z
    .string()
    .regex(/^\d{0,9}$/, 'must be the nextPageToken of a page')
    .nullish(),
  statusTimestampAfter: z.iso.datetime({ offset: true }).nullish(),
  includeArtifacts: flag.nullish(),
})
export type ListTasksRequest = z.output<typeof ListTasksRequest>

export const CreatePushConfigRequest = PushConfig.extend({ taskId: id })
export const PushConfigRequest = z.object({ taskId: id, id })
export const ListPushConfigsRequest = z.object({ taskId: id })

type WirePart = { text: string; mediaType?: string } | { data: unknown; mediaType?: string }

export type WireMessage = {
  messageId: string
  contextId: string
  taskId?: string
  role: 'ROLE_AGENT'
  parts: WirePart[]
}
export type TaskStatus = { state: TaskState; message?: WireMessage; timestamp: string }
export type Artifact = { artifactId: string; name: string; parts: WirePart[] }
export type Task = { id: string; contextId: string; status: TaskStatus; artifacts?: Artifact[] }

type OfTask = { taskId: string; contextId: string }

/** An item of a stream, and the body of a notification. */
export type StreamResponse =
  | { task: Task }
  | { message: WireMessage }
  | { statusUpdate: OfTask & { status: TaskStatus } }
  | { artifactUpdate: OfTask & { artifact: Artifact; append: boolean; lastChunk: boolean } }
