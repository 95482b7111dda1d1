/** Texts of the notifications of the browser. */

export const notices = {
  button: 'Notifications',
  intro:
    'Notifications of this browser for this project, while the console is open in a tab. One tab shows them. You are signed out without input for a while, and then they end.',
  kinds: {
    approvals: 'Approvals that wait for a decision',
    attention: 'Sessions that request a person',
    exceptions: 'Exceptions',
  },
  details: 'Show details',
  detailsText: 'The name of the call, the reason or the title. Others may see it on your screen.',
  titles: {
    approvals: 'An approval waits for a decision',
    attention: 'A session requests a person',
    exceptions: 'A new exception',
  },
  denied: 'This browser blocks notifications of the console. Allow them in its settings of this site.',
  none: 'This browser has no notifications for sites.',
} as const
