import type { Operation, OperationResult } from '#core/api/operation.ts'
import { type CallInput, callOperation as callFor, type MountRequest, type MountSurface } from '../call.ts'
import type { TranslatedStream } from '../event-format.ts'
import type { RunInput } from './input.ts'
import type { Thread } from './store.ts'

/** A mount whose chats are threads: of AG-UI, or of another protocol that is translated to its runs. */
export type ThreadMount = {
  surface: MountSurface
  /** Prefix of the session keys of threads, within the limit of 255 characters. */
  keyPrefix: string
  /** Directory of files in messages. */
  directory: string
  /** Whether a run may answer some of the open interrupts of its thread. */
  answersPartly: boolean
}

/** A request to the mount by an identified caller. */
export type AgUiRequest = MountRequest & { mount: ThreadMount }

/** A run: the thread's session, and what the client sent. */
export type Run = {
  request: AgUiRequest
  agentId: string
  sessionId: string
  thread: Thread
  input: RunInput
  /** Whether the turn counts by a message of the run. */
  counted?: boolean
}

/** A turn whose frames the run shows. */
export type ShownTurn = TranslatedStream & { generation_id: string }

/** Calls an operation on behalf of a request, with its permissions. @throws the errors of the operation */
export const callOperation = (
  request: AgUiRequest,
  operation: string | Operation,
  input: CallInput,
): Promise<OperationResult> => callFor(request, request.mount.surface, operation, input)
