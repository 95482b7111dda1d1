import {
  IconBrain,
  IconFileText,
  IconFolder,
  IconInbox,
  IconLayoutDashboard,
  IconMessage2,
  IconMessages,
  IconPlayerPlay,
  IconRobot,
  IconRocket,
  IconShieldCheck,
  IconTool,
  IconZoomQuestion,
  type TablerIcon,
} from '@tabler/icons-react'
import { strings } from '../strings.ts'

export type NavigationEntry = {
  name: string
  path: string
  icon: TablerIcon
  /** Permission without which the view is not offered. */
  action: string
}

const { nav } = strings

/** Views of a project, by what they are for. */
export const GROUPS: { name: string; views: NavigationEntry[] }[] = [
  {
    name: nav.groups.project,
    views: [
      { name: nav.start, path: 'start', icon: IconRocket, action: 'projects:GetProject' },
      { name: nav.overview, path: 'overview', icon: IconLayoutDashboard, action: 'generations:ListGenerations' },
      { name: nav.inbox, path: 'inbox', icon: IconInbox, action: 'approvals:ListApprovals' },
    ],
  },
  {
    name: nav.groups.build,
    views: [
      { name: nav.agents, path: 'agents', icon: IconRobot, action: 'agents:ListAgents' },
      { name: nav.playground, path: 'playground', icon: IconPlayerPlay, action: 'agents:CreateAgentGeneration' },
      { name: nav.tools, path: 'tools', icon: IconTool, action: 'tools:ListTools' },
      { name: nav.guardrails, path: 'guardrails', icon: IconShieldCheck, action: 'guardrails:ListGuardrails' },
    ],
  },
  {
    name: nav.groups.knowledge,
    views: [
      { name: nav.files, path: 'files', icon: IconFolder, action: 'files:GetFile' },
      { name: nav.documents, path: 'documents', icon: IconFileText, action: 'documents:ListDocuments' },
      { name: nav.search, path: 'search', icon: IconZoomQuestion, action: 'knowledge:SearchKnowledge' },
      { name: nav.memory, path: 'memory', icon: IconBrain, action: 'memories:ListMemoryStores' },
    ],
  },
  {
    name: nav.groups.conversations,
    views: [
      { name: nav.sessions, path: 'sessions', icon: IconMessages, action: 'sessions:ListSessions' },
      {
        name: nav.conversations,
        path: 'conversations',
        icon: IconMessage2,
        action: 'conversations:ListConversations',
      },
    ],
  },
  { name: nav.groups.automate, views: [] },
  { name: nav.groups.operate, views: [] },
]

/** All views of a project. */
export const NAVIGATION: NavigationEntry[] = GROUPS.flatMap(({ views }) => views)
