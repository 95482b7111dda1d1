/** Texts of the overview. */

export const overview = {
  intro: 'What happens in this project, and what needs attention.',
  cost: 'Cost today',
  tokens: 'Tokens today',
  approvals: 'Open approvals',
  exceptions: 'Open exceptions',
  attention: 'Sessions that need a person',
  dead: 'Dead letters',
  quota: (used: string, limit: string, window: string) => `Quota: ${used} of ${limit} ${window}`,
  quotaLabel: 'Quota in use',
  oldest: 'Oldest waiting work',
  nothing: 'None',
  recent: 'Latest turns',
  noTurns: 'No turn yet',
  noTurnsText: 'A turn is one reply of an agent. Failures, cost and the latest turns appear here.',
  failures: 'Failed turns by cause, of the last 100',
  erasedCause: 'Erased',
  noFailures: 'None of the last 100 turns failed.',
  pause: 'Pause project',
  pauseText: 'No work starts while a project is paused. Running work continues to its next step.',
  reason: 'Reason',
} as const
