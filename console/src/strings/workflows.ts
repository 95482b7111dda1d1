/** Texts of workflows. */

export const workflows = {
  intro: 'States and transitions for work items. People, agents, runs and tools move tasks between them.',
  empty: 'No workflow yet',
  emptyText: 'A workflow is a board: tasks enter the first column and move by transitions, some of them on their own.',
  create: 'New workflow',
  states: 'States',
  board: 'Board',
  definition: 'Definition',
  deleteText: 'Its versions and closed tasks are deleted with it. A workflow with open tasks cannot be deleted.',
  editText: 'A change of states, transitions or schema makes a new version. Existing tasks keep theirs.',
  work: 'Work on entry',
  transitions: 'Transitions',
  payload: 'Schema of the payload',
  kinds: { initial: 'Initial', terminal: 'Final', human: 'Person', machine: 'Automatic' },
  dispatch: { agent: 'Agent', orchestration: 'Orchestration', tool: 'Tool', trigger: 'Trigger' } as Record<
    string,
    string
  >,
  approval: 'needs approval',
  graph: 'Graph',
  changed: 'Another person has changed this workflow',
} as const
