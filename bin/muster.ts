#!/usr/bin/env node
import './muster.mjs'
