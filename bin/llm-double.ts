#!/usr/bin/env node
import { doubleCommand } from '#local/double/command.ts'

await doubleCommand().parseAsync()
