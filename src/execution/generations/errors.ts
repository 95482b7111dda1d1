import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const generationErrors = {
  GENERATION_ALREADY_IN_PROGRESS: {
    status: 409,
    description: 'A generation is running for the session',
    message: 'The generation {generation_id} is under way',
    hint: 'Wait until the generation meta.generation_id has ended, or end it with POST /generations/{generation_id}/cancel, then repeat.',
  },
  GENERATION_CONTENT_UNAVAILABLE: {
    status: 409,
    description: 'Content never stored (trace_content_mode none) or purged',
    message: 'The content of the generation {generation_id} was never stored or has been erased',
    hint: 'The content cannot be had back. trace_content_mode of the project and the agent says whether that of later turns is kept.',
  },
  GENERATION_FAILED: { status: 500, description: 'Unexpected failure during generation' },
  GENERATION_NOT_FOUND: {
    status: 404,
    description: 'Generation missing or not pending for tool output submission',
    message: 'There is no generation {id}',
  },
  MODEL_NOT_PRICED: {
    status: 409,
    description: 'Generation on an unpriced model in a project that requires prices',
    message: 'The model has no price, and the project requires one',
    hint: 'Give the rows of meta.unpriced_rows a price, or take require_priced_model off the project.',
  },
  OUTPUT_SCHEMA_STREAMING_UNSUPPORTED: {
    status: 400,
    description: 'Streaming with output_schema',
    message: 'An agent with an output_schema cannot be streamed',
  },
  OUTPUT_SCHEMA_VALIDATION_FAILED: { status: 502, description: 'Model output violates output_schema or is not JSON' },
  SYSTEM_MESSAGE_NOT_ALLOWED: {
    status: 400,
    description: 'A role system entry in messages; use the instructions field',
    message: 'Messages with the role system are not accepted; use the instructions field',
  },
  TEXT_ENCODED_TOOL_CALL: { status: 502, description: 'Model wrote a tool call as plain text' },
  TOOL_CALL_FAILED: {
    status: 422,
    description: "A transcript's tool result that failed without a code of its own; keeps the thrown message",
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof generationErrors> {}
}
