import type { CodesOf, ErrorTable } from '../../core/api/errors.ts'

export const triggerErrors = {
  HOOK_INVALID_JSON: {
    status: 400,
    description: 'Inbound hook body not JSON',
    message: 'The body of the call is not JSON',
  },
  HOOK_PAYLOAD_TOO_LARGE: {
    status: 413,
    description: 'Inbound hook body over 1 MiB',
    message: 'The body of the call is larger than {max_bytes} bytes',
  },
  INVALID_CRON_EXPRESSION: {
    status: 400,
    description: 'Triggers need a strict 5-field cron expression that occurs',
    hint: 'minute, hour, day of the month, month, day of the week: numbers, names of months and days, *, lists, ranges and steps.',
  },
  INVALID_EVENT_PATTERN: {
    status: 400,
    description:
      'Pattern must be *, prefix.*, or an exact name; platform-namespace patterns must match a registered event',
    hint: 'GET /events/registry lists the events of the platform.',
  },
  TRIGGER_ACTION_NOT_ALLOWED: {
    status: 400,
    description:
      'A field does not go with the type or the target of the trigger: action belongs to platform and mcp tools, cron to schedules, event_pattern to event triggers, secrets to webhook triggers',
  },
  TRIGGER_CAUSATION_LIMIT: {
    status: 409,
    description: 'Event trigger already in the causal chain, or chain too deep or too broad',
    hint: 'Narrow event_pattern or event_filter of the trigger, so that what it leads to does not fire it.',
  },
  TRIGGER_CREATOR_UNAVAILABLE: {
    status: 409,
    description: 'Trigger creator no longer exists',
    message: 'The trigger {trigger_id} does not fire: the principal that it runs as is gone or disabled',
    hint: 'Enable that principal again, or make the trigger anew with POST /triggers as somebody who is there.',
  },
  TRIGGER_FIRING_ABANDONED: { status: 500, description: 'The worker died on every delivery of a tool firing' },
  TRIGGER_INPUT_INVALID: { status: 400, description: 'Effective input invalid for target' },
  TRIGGER_NOT_ACTIVE: {
    status: 409,
    description: 'Trigger inactive',
    message: 'The trigger {trigger_id} is not active',
    hint: 'Set active of the trigger to true, then repeat.',
  },
  TRIGGER_RECURSION_FORBIDDEN: {
    status: 403,
    description: 'Trigger-scoped credential cannot fire a trigger',
    message: 'What the trigger {trigger_id} started may not fire triggers',
  },
  TRIGGER_TARGET_NOT_FOUND: {
    status: 400,
    description: 'Target missing or type mismatch',
    message: 'The project has no {target_type} {target_id}',
  },
  TRIGGER_TYPE_IMMUTABLE: {
    status: 400,
    description: 'Trigger type cannot change',
    message: 'type: a trigger of the type {type} cannot become {requested}',
  },
} as const satisfies ErrorTable

declare module '../../core/api/errors.ts' {
  interface ErrorCodes extends CodesOf<typeof triggerErrors> {}
}
